"""From a file to a release: every column is read and converted once, and in little memory."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("opendp")

from dpbnn.errors import DpbnnError
from dpbnn.tables import encoding, fitting
from dpbnn.tables.encoding import Encoding
from dpbnn.tables.fitting import Order, fit_table
from dpbnn.tables.reading import Table
from dpbnn.tables.schema import Category, Number, Schema
from tests.spending import Watch

COLUMNS = {"age": Number(0.0, 100.0), "wage": Number(), "city": Category(("Rome", "Oslo")), "height": Number()}


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(0)
    lines = [f"{number // 2},{number % 90},{50 * (number % 90)},Rome,1.{number % 99}" for number in range(2000)]
    generator.shuffle(lines)
    (tmp_path / "data.csv").write_text("\n".join(["id,age,wage,city,height", *lines]) + "\n")
    return tmp_path / "data.csv"


def order(file, target, columns=COLUMNS, **how):
    given = {"epochs": 3, "batch_size": 2000}
    schema = Schema(columns, target)
    return Order(file, schema, file.parent / f"model of {target}", 3.0, given=given, progress=False, **how)


@pytest.mark.parametrize("target", ["city", "height"])
def test_a_fit_reads_the_file_once_and_converts_every_column_once_also_where_bounds_are_bought(
    file, target, monkeypatch
):
    converted, read = Counter(), []
    for name in ("numbers", "categories"):
        original = getattr(encoding, name)

        def counted(column, *rest, original=original):
            converted[column] += 1
            return original(column, *rest)

        monkeypatch.setattr(encoding, name, counted)
    read_table = fitting.read_table
    monkeypatch.setattr(fitting, "read_table", lambda *how: read.append(how) or read_table(*how))
    watch = Watch()(monkeypatch)
    model, _ = fit_table(order(file, target), "")
    assert converted == dict.fromkeys(COLUMNS, 1)
    assert len(read) == 1
    assert list(model.bought_bounds) == ["wage", "height"]
    assert len(watch.purposes) == 4 + (target == "height")


def test_bounds_that_are_bought_are_applied_as_public_ones_are(file):
    values = {"age": Number(0.0, 100.0), "wage": Number(0.0, 4000.0), "city": COLUMNS["city"]}
    table = fitting._rows_of(order(file, "city", values))
    public = Encoding(Schema(values, "city")).encoded(table, with_target=True)
    waiting = Encoding(Schema(values | {"wage": Number()}, "city"))
    bought = waiting.encoded(table, with_target=True)
    assert np.isnan(bought.x[:, 1]).all()
    assert np.isfinite(bought.x[:, 0]).all()
    waiting.with_bounds({"wage": (0.0, 4000.0)}).scale(bought)
    np.testing.assert_array_equal(bought.x, public.x)
    np.testing.assert_array_equal(bought.y, public.y)
    assert not bought.unscaled


def test_encoding_holds_the_rows_once_in_float32_and_what_waits_for_bounds_once():
    import pyarrow as arrow

    rows, columns = 20_000, 20
    values = np.random.default_rng(0).normal(size=rows)
    names = [f"column {place}" for place in range(columns)]
    table = Table("it", {name: arrow.array(values) for name in names}, rows)
    schema = Schema({name: Number() if place < 4 else Number(-1.0, 1.0) for place, name in enumerate(names)}, names[-1])
    tracemalloc.start()
    encoded = Encoding(schema).encoded(table, with_target=True)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    kept = encoded.x.nbytes + encoded.y.nbytes + sum(own.nbytes for own in encoded.unscaled.values())
    assert kept == rows * (4 * columns + 8 * 4)
    assert most < kept + 6 * values.nbytes, "some columns beside them, while one is converted"


def test_bad_rows_are_refused_before_anything_is_bought_or_begun(file, monkeypatch):
    watch = Watch()(monkeypatch)
    with file.open("a") as lines:
        lines.write("5000,30,7,Paris,1.8\n")
    with pytest.raises(DpbnnError, match="row 2001, column 'city'"):
        fit_table(order(file, "height"), "")
    assert not watch.calls
    assert [left.name for left in file.parent.iterdir()] == ["data.csv"]


def test_a_run_that_is_resumed_on_another_table_or_schema_is_told_so(file, monkeypatch):
    """Nothing is said of how many rows there are."""

    def cut(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "train", cut)
    with pytest.raises(KeyboardInterrupt):
        fit_table(order(file, "city"), "")
    with pytest.raises(DpbnnError, match="belongs to a run with another schema; resume it with that"):
        fit_table(order(file, "city", COLUMNS | {"age": Number(0.0, 99.0)}, resume=True), "")
    with file.open("a") as lines:
        lines.write("5000,30,7,Oslo,1.8\n")
    with pytest.raises(DpbnnError, match="belongs to a run with another table, of more or fewer rows") as error:
        fit_table(order(file, "city", resume=True), "")
    assert "200" not in str(error.value)
