"""Predictions as columns of a file, and figures with a caution."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("pyarrow")

import pyarrow.parquet as parquet

from dpbnn.errors import DpbnnError
from dpbnn.prediction import ClassPrediction, RealPrediction
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.tables.encoding import Encoding
from dpbnn.tables.model import TableModel
from dpbnn.tables.reading import read_table
from dpbnn.tables.reporting import figures_of, predicted_columns, write_predictions
from dpbnn.tables.schema import Category, Number, Schema

CLASSES = Encoding(Schema({"x": Number(0, 1), "y": Category(("no", "yes"))}, "y"))
NUMBERS = Encoding(Schema({"x": Number(0, 1), "y": Number(0, 10)}, "y"))
LABELS = ClassPrediction(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0.1, 0.2]), 5)
VALUES = RealPrediction(torch.tensor([[[1.0], [9.0]], [[3.0], [9.0]]]), torch.full((2, 2, 1), 4.0))


def model(encoding, bought=()):
    guarantee = PrivacyGuarantee.for_plan(PrivacyPlan(100, 100, 1, 1.0, 20.0, 1e-5))
    return TableModel(SimpleNamespace(guarantee=guarantee, settings={}), encoding, bought)


def test_classes_get_a_label_its_probability_and_both_uncertainties():
    columns = predicted_columns(model(CLASSES), LABELS, 0.95)
    assert columns["label"].tolist() == ["no", "yes"]
    assert columns["probability"] == pytest.approx([0.9, 0.8])
    assert columns["probability_yes"] == pytest.approx([0.1, 0.8])
    assert (columns["entropy"] > columns["mutual_information"]).all()


def test_numbers_get_a_deviation_in_two_parts_and_an_interval_within_the_public_range():
    columns = predicted_columns(model(NUMBERS), VALUES, 0.9)
    assert columns["mean"].tolist() == [2.0, 9.0]
    np.testing.assert_allclose(columns["std"] ** 2, columns["aleatoric_std"] ** 2 + columns["epistemic_std"] ** 2)
    assert columns["epistemic_std"] == pytest.approx([2**0.5, 0.0])
    assert (columns["low_90"] >= 0).all()
    assert columns["high_90"][1] == 10, "no target lies beyond a public range"
    assert predicted_columns(model(NUMBERS, ("y",)), VALUES, 0.9)["high_90"][1] > 10, "as it may beyond a bought one"


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_all_columns_are_written_and_then_the_added_ones(tmp_path, name):
    (tmp_path / "in.csv").write_text("a;b\n1;x\n2;y\n")
    source = read_table(tmp_path / "in.csv", ["a", "b"], separator=";")
    write_predictions(source, {"label": np.array(["no", "yes"])}, tmp_path / name, ";")
    if name.endswith(".csv"):
        with (tmp_path / name).open() as file:
            assert list(csv.reader(file, delimiter=";")) == [["a", "b", "label"], ["1", "x", "no"], ["2", "y", "yes"]]
    else:
        assert parquet.read_table(tmp_path / name).column_names == ["a", "b", "label"]


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    (tmp_path / "in.csv").write_text("a\n1\n")
    source = read_table(tmp_path / "in.csv", ["a"])
    with pytest.raises(DpbnnError, match="must not have a column 'a' already"):
        write_predictions(source, {"a": np.array([1])}, tmp_path / "out.csv")

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(DpbnnError, match="cannot be written: No space left on device; nothing was"):
        write_predictions(source, {"b": np.array([1])}, tmp_path / "out.csv")
    assert [file.name for file in tmp_path.iterdir()] == ["in.csv"]


def test_figures_of_private_rows_come_with_a_caution_and_all_with_the_models_guarantee():
    private = figures_of(model(CLASSES), LABELS, np.array([0, 0]), is_public=False)
    assert (private["rows"], private["accuracy"], private["test_data"]) == (2, 0.5, "private")
    assert "outside the guarantee" in private["caution"]
    assert set(private["guarantee"]) == {"epsilon", "delta", "unit"}
    public = figures_of(model(NUMBERS), VALUES, np.array([2.0, 8.0]), is_public=True)
    assert public["rmse"] == pytest.approx(0.5**0.5, abs=1e-6)
    assert "caution" not in public
