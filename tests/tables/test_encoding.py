"""Columns as numbers: by what is public alone, and never with a value in a message."""

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as arrow
import pyarrow.parquet as parquet

from dpbnn.errors import DpbnnError
from dpbnn.tables import Category, Encoding, Number, Schema, read_table

SCHEMA = Schema(
    {
        "age": Number(0.0, 100.0),
        "gain": Number(0.0, 1000.0, "log", may_be_missing=True),
        "job": Category(("a", "b"), other=True, may_be_missing=True),
        "y": Category(("no", "yes")),
    },
    "y",
)


def table_of(tmp_path, text, schema=SCHEMA, target=True):
    file = tmp_path / "data.csv"
    file.write_text(text)
    return read_table(file, list(schema.columns if target else schema.features), schema.names)


def encoded(tmp_path, text, schema=SCHEMA):
    return Encoding(schema).encoded(table_of(tmp_path, text, schema), with_target=True)


def test_numbers_are_clipped_and_scaled_and_categories_get_one_number_each(tmp_path):
    found = encoded(tmp_path, "age,gain,job,y\n50,0,a,no\n-7,1000,b,yes\n1e30,?,zebra,no\n25,,,yes\n")
    np.testing.assert_allclose(found.x[:, 0], [0, -1, 1, -0.5])
    np.testing.assert_allclose(found.x[:2, 1], [-1, 1])
    np.testing.assert_array_equal(found.x[2:, 1:3], [[0, 1], [0, 1]])
    np.testing.assert_array_equal(found.x[:, 3:], [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    assert found.y.tolist() == [0, 1, 0, 1]
    assert found.x.shape[1] == Encoding(SCHEMA).features == 7
    assert np.abs(found.x).max() <= 1


def test_the_log_scale_spreads_small_values(tmp_path):
    found = encoded(tmp_path, "age,gain,job,y\n1,1,a,no\n1,10,a,no\n1,100,a,no\n")
    assert (np.diff(found.x[:, 1]) > 0.4).all()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("sixty,1,a,no", "row 2, column 'age': expected a number"),
        (",1,a,no", "row 2, column 'age': expected a number, got a missing value"),
        ("inf,1,a,no", "row 2, column 'age': expected a finite number"),
        ("6,1,a,perhaps", "row 2, column 'y': expected one of the schema's values"),
        ("6,1,a,", "row 2, column 'y': expected a category, got a missing value"),
    ],
)
def test_what_the_schema_does_not_know_is_refused_by_row_and_column_without_the_value(tmp_path, row, message):
    with pytest.raises(DpbnnError) as error:
        encoded(tmp_path, f"age,gain,job,y\n5,1,a,no\n{row}\n")
    assert message in str(error.value)
    assert "sixty" not in str(error.value)
    assert "perhaps" not in str(error.value)


def test_parquet_gives_what_csv_gives(tmp_path):
    columns = {"age": [50.0, 25.0], "gain": [None, 10.0], "job": ["a", None], "y": ["no", "yes"]}
    parquet.write_table(arrow.table(columns), tmp_path / "data.parquet")
    from_parquet = Encoding(SCHEMA).encoded(read_table(tmp_path / "data.parquet", list(SCHEMA.columns)), True)
    from_csv = encoded(tmp_path, "age,gain,job,y\n50,,a,no\n25,10,,yes\n")
    np.testing.assert_array_equal(from_parquet.x, from_csv.x)
    np.testing.assert_array_equal(from_parquet.y, from_csv.y)


def test_targets_that_are_numbers_are_scaled_too(tmp_path):
    schema = Schema({"x": Number(0.0, 1.0), "y": Number(-10.0, 10.0)}, "y")
    found = encoded(tmp_path, "x,y\n0.5,5\n1,-99\n", schema)
    np.testing.assert_allclose(found.y, [[0.5], [-1.0]])


def test_a_file_without_header_takes_the_schemas_names(tmp_path):
    schema = Schema(SCHEMA.columns, "y", names=("age", "gain", "job", "y"))
    assert encoded(tmp_path, "50, 0, a, no\n 25 ,1,b,yes\n", schema).x.shape == (2, 7)


def test_bought_bounds_complete_a_schema():
    schema = Schema({"a": Number(), "b": Number(0.0, 1.0), "y": Number(may_be_missing=False)}, "y")
    encoding = Encoding(schema)
    assert encoding.without_bounds == ["a", "y"]
    complete = encoding.with_bounds({"a": (-1.0, 2.0), "y": (0.0, 5.0)})
    assert complete.without_bounds == []
    assert complete.schema.columns["a"] == Number(-1.0, 2.0)
