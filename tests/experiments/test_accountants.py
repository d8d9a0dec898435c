"""Epsilon of the paper's plans by every accountant."""

import json

import pytest

from dpbnn.experiments import QUICK
from dpbnn.experiments.reproducing import FOLDER, reproduce

SPEC = {
    "DP-SGD, DP-BBP, DP-MC Dropout": (0.8645, 0.9544, 0.8344),
    "DP-SGLD": (0.8937, 0.9888, 0.8613),
    "the paper's regression": (4.1944, 4.8010, 4.2083),
    "little noise, rare records": (4.2351, 5.3292, 0.9764),
    "a common setting": (1.8282, 2.1014, 1.6177),
    "large batches": (2.5320, 2.7686, 2.4259),
}


def test_epsilon_comes_out_by_every_accountant(tmp_path):
    reproduce(["accountants"], QUICK, tmp_path, show=False)
    stored = json.loads((tmp_path / FOLDER / "accountants.json").read_text())
    points = {what: curve[-1] for what, curve in stored["curves"].items()}
    points |= {row["what"]: row["epsilon"] for row in stored["rows"]}
    assert set(points) == set(SPEC)
    for what, expected in SPEC.items():
        assert [points[what][name] for name in ("pld", "rdp", "gdp")] == pytest.approx(expected, abs=2e-4), what
    for curve in stored["curves"].values():
        for name in ("pld", "rdp", "gdp"):
            assert [point[name] for point in curve] == sorted(point[name] for point in curve)
        assert all(point["gdp"] < point["pld"] < point["rdp"] for point in curve)
