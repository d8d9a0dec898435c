"""What is left of a fit: how rows are read and predicted, and what is said of the model."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("pyarrow")
pytest.importorskip("opendp")

from dpbnn.errors import DpbnnError
from dpbnn.prediction import RealPrediction
from dpbnn.tables.encoding import Encoding
from dpbnn.tables.model import ROUGH_UNCERTAINTY, TableModel, load_table_model, log_of, settings_of
from dpbnn.tables.schema import Category, Number, Schema
from dpbnn.tables.settings import Facts
from dpbnn.tables.terms import terms_for

COLUMNS = {"x": Number(0, 1), "city": Category(("Rome", "Oslo")), "y": Number(0, 10)}


class Remembered:
    """In place of a release: what it was asked, and settings."""

    def __init__(self, **settings):
        self.settings = settings

    def predict(self, x, num_draws, seed):
        self.asked = x, num_draws, seed
        return RealPrediction(torch.full((2, len(x), 1), 0.5), torch.full((2, len(x), 1), 0.04))


def model(names=None, bought=(), **settings):
    return TableModel(Remembered(**settings), Encoding(Schema(COLUMNS, "y", names=names)), bought)


def test_rows_are_encoded_and_predictions_come_in_the_unit_of_the_target(tmp_path):
    (tmp_path / "new.csv").write_text("city,x\nOslo,1\nRome,0\n")
    it = model()
    prediction = it.predict(it.read(tmp_path / "new.csv"), num_draws=7, seed=3)
    np.testing.assert_array_equal(it.release.asked[0], [[1, 0, 1], [-1, 1, 0]])
    assert it.release.asked[1:] == (7, 3)
    assert prediction.mean.tolist() == [[7.5], [7.5]]
    assert prediction.variances[0, 0, 0].item() == pytest.approx(0.04 * 25)


def test_targets_are_those_of_the_file_unclipped_and_unscaled(tmp_path):
    (tmp_path / "test.csv").write_text("x,city,y\n0,Oslo,3.5\n0,Rome,12\n")
    it = model()
    assert it.encoding.targets(it.read(tmp_path / "test.csv", with_target=True)).tolist() == [3.5, 12.0]


@pytest.mark.parametrize(("text", "rows"), [("1,Rome\n0,Oslo\n", 2), ("1,Rome,5\n", 1)])
def test_new_rows_without_a_header_may_lack_the_target(tmp_path, text, rows):
    (tmp_path / "new.csv").write_text(text)
    it = model(names=("x", "city", "y"))
    assert it.read(tmp_path / "new.csv").rows == rows
    assert len(it.read(tmp_path / "new.csv", with_others=True).columns) == text.count(",") // rows + 1


def test_a_range_that_was_bought_is_shown_and_bounds_no_interval():
    it = model(bought=("y",))
    assert it.bought_bounds == {"y": (0, 10)}
    assert it.public_range == (-np.inf, np.inf)
    assert model().public_range == (0, 10)


def test_what_is_so_of_every_private_chain_is_one_note():
    rare = "Something that a user should know."
    of_all = ["The plan's noise implies temperature 7", "A learned noise level under clip norm 1"]
    assert model(warnings=[rare, *of_all]).notes == (rare, ROUGH_UNCERTAINTY)
    assert model(warnings=[rare]).notes == (rare,)
    assert model().notes == ()


def test_every_setting_has_its_reason_and_the_log_has_all_of_them():
    facts = Facts(rows=500, columns=2, classes=None, epsilon=1.0, delta=1e-4)
    chosen = terms_for(facts, {"clip_norm": 2.0, "epochs": 5, "batch_size": 500, "hidden": []}).chosen
    settings = {name: (value, reason) for name, value, reason in settings_of(chosen)}
    assert settings["clip_norm"] == (2.0, "given")
    assert settings["steps"] == (5, "from the epochs given")
    assert settings["epsilon_of_purchases"][0] == chosen.noise_epsilon
    log = log_of(model(bought=("y",)), chosen)
    assert all(f"{name}: " in log for name in settings)
    assert "range of y: 0 to 10  (bought)" in log


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "must be a folder that dpbnn fit wrote"), ("{", "is damaged"), (json.dumps({"bought": []}), "is damaged")],
)
def test_a_folder_that_holds_no_model_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "table.json").write_text(text)
    with pytest.raises(DpbnnError, match=message):
        load_table_model(tmp_path)
