"""Bugs of what is bought from the records: bounds of columns, the noise level of numbers."""

import contextlib

import numpy as np
import pytest

import dpbnn
from dpbnn.privacy.purchases import PurchaseFile
from dpbnn.release import draft
from dpbnn.release.release import Release
from tests.audit.planted.common import Bug, seeded_drafts

PEOPLE, ROWS = 400, 3
SCHEMA = """
target = "height"
[columns.age]
type = "number"
[columns.height]
type = "number"
low = -10
high = 10
"""


class Watched:
    """Every release that OpenDP makes: what it costs for one record more or less, and of how many values it is."""

    def __init__(self, patch):
        import opendp.core

        original, self.costs, self.sizes = opendp.core.measurement_invoke, [], []

        def invoked(measurement, values):
            self.costs.append(measurement.map(1))
            self.sizes.append(len(values))
            return original(measurement, values)

        patch.setattr(opendp.core, "measurement_invoke", invoked)


def regressor(**how):
    from dpbnn.sklearn import DPBayesRegressor

    return DPBayesRegressor(**{"method": "sgd", "epsilon": 3.0, "epochs": 3, "max_records_per_person": ROWS} | how)


def table(rows=PEOPLE * ROWS):
    generator = np.random.default_rng(0)
    X = generator.normal(0, 3, (rows, 1))
    return X, X[:, 0] + generator.normal(0, 1, rows)


def charged():
    """Contract: what OpenDP releases in a fit is what the plan pays for, no more and no dearer."""
    pytest.importorskip("opendp")
    with pytest.MonkeyPatch.context() as patch:
        seen = Watched(patch)
        plan = regressor().fit(*table(), groups=np.arange(PEOPLE * ROWS) // ROWS).settings_.plan
    paid, cost = sorted(plan.pure_epsilons), sorted(seen.costs)
    return len(paid) != len(cost) or any(spent > most * (1 + 1e-6) for spent, most in zip(cost, paid, strict=True))


def cut():
    """Contract: what is bought is bought of at most so many rows of each person."""
    pytest.importorskip("opendp")
    rows = PEOPLE * ROWS + 500
    people = np.minimum(np.arange(rows) // ROWS, PEOPLE - 1)  # the last one has many
    with pytest.MonkeyPatch.context() as patch:
        seen = Watched(patch)
        regressor().fit(*table(rows), groups=people)
    return max(seen.sizes) > PEOPLE * ROWS


def ordered(folder, resume):
    from dpbnn.tables.fitting import Order, fit_table
    from dpbnn.tables.schema import read_schema

    how = {"method": "sgd", "given": {"epochs": 3}, "progress": False}
    order = Order(folder / "table.csv", read_schema(folder / "schema.toml"), folder / "out", 3.0, resume=resume, **how)
    return fit_table(order, SCHEMA)[1].plan


def resumed(folder):
    """Contract: what was bought before an interruption is not bought again."""
    pytest.importorskip("opendp")
    pytest.importorskip("pyarrow")
    (folder / "schema.toml").write_text(SCHEMA)
    values = np.stack([table()[0][:, 0], table()[1]], axis=1)
    np.savetxt(folder / "table.csv", values, delimiter=",", header="age,height", comments="")

    def full(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        seen = Watched(patch)
        with pytest.MonkeyPatch.context() as within, contextlib.suppress(KeyboardInterrupt):
            within.setattr(Release, "save", full)
            ordered(folder, resume=False)
        try:
            plan = ordered(folder, resume=True)
        except dpbnn.DpbnnError:  # other bounds are other data, with which a run does not go on
            return True
    return len(seen.costs) != len(plan.pure_epsilons)


def masks():
    """Contract: what private records are predicted with for a purchase, no seed of the user's tells."""
    pytest.importorskip("opendp")
    original, seeds = draft.predict, []

    def noted(*given, seed):
        seeds.append(seed)
        return original(*given, seed=seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "predict", noted)
        regressor(method="mc_dropout", random_state=0, max_records_per_person=1).fit(*table())
    return not seeds or any(seed is not None for seed in seeds)


def bought_again(word):
    """Purchases that are not looked up in their file."""

    def plant(patch):
        original = PurchaseFile.open

        def planted(self, *promised):
            return {purpose: permit for purpose, permit in original(self, *promised).items() if word not in purpose}

        patch.setattr(PurchaseFile, "open", planted)

    return plant


def of_all_rows(patch):
    """Bounds are bought before rows are cut."""
    from dpbnn.privacy.queries.bounds import BoundsPurchase
    from dpbnn.sklearn import DPBayesRegressor

    rows, bounds_of, whole = DPBayesRegressor._rows, BoundsPurchase.bounds_of, []

    def remembered(self, X, y, groups):
        whole[:] = [X, y[:, None]]
        return rows(self, X, y, groups)

    def of_whole(self, values, ledger):
        parts = whole if values.shape[1] > whole[0].shape[1] else whole[:1]
        return bounds_of(self, np.concatenate(parts, axis=1), ledger)

    patch.setattr(DPBayesRegressor, "_rows", remembered)
    patch.setattr(BoundsPurchase, "bounds_of", of_whole)


def half_the_noise(patch):
    from dpbnn.privacy.queries import bounds

    original = bounds._measurement
    patch.setattr(bounds, "_measurement", lambda share, epsilon, candidates: original(share, 2 * epsilon, candidates))


BUGS = [
    Bug("bounds bought with half the noise", half_the_noise, charged),
    Bug("bounds bought before rows are cut", of_all_rows, cut),
    Bug("bounds bought again after an interruption", bought_again("quartile"), resumed),
    Bug("a noise level bought again after an interruption", bought_again("noise level"), resumed),
    Bug("residuals predicted with masks that a seed tells", seeded_drafts, masks),
]
