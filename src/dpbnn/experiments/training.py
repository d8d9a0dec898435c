"""Training runs of image classifiers, and everything that is measured on them."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

import dpbnn
from dpbnn import metrics
from dpbnn.data import IMAGE_SETS, Images, load_images
from dpbnn.experiments.item import Found, Size
from dpbnn.experiments.recipes import three_ways
from dpbnn.experiments.seeded_run import SeededRun
from dpbnn.experiments.settings import METHODS, NETWORKS, Setting
from dpbnn.experiments.words import by_accountant

__all__ = [
    "Training",
    "fitted",
    "found_by",
    "images",
    "rows_in_three_ways",
    "runs_in_three_ways",
    "runs_of",
    "trained",
]

FOREIGN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
"""What a classifier has never seen the like of."""
DECIMALS = 5


class Training(SeededRun):
    """A run, and everything that is measured on it; a job.

    All figures of `dpbnn.metrics.evaluate` on the test images, the bins behind the calibration errors, and how well
    doubt tells images of another kind apart; nothing where the network has diverged.
    """

    @classmethod
    def run_all(cls, jobs: "Sequence[Training]", device: str) -> Iterator[Found]:
        """All at once, where a GPU can."""
        own = images(jobs[0].setting.data, jobs[0].size, device)
        releases = trained([(job.setting, job.seed) for job in jobs], own, device)
        for job, release in zip(jobs, releases, strict=True):
            yield {"seed": job.seed, **_measured(release, own, job)}


def trained(runs: Sequence[tuple[Setting, int]], own: Images, device: str) -> list[dpbnn.Release]:
    """What comes out of settings with their seeds, all at once where a GPU can."""
    setups = []
    for setting, seed in runs:
        torch.manual_seed(seed)
        model = setting.model().to(device)
        setups.append(dpbnn.Setup(model, setting.method, setting.plan(), dpbnn.Categorical(), seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
        return dpbnn.fit_many(setups, own.x, own.y, execution=_execution_on(device), progress=False)


def fitted(setting: Setting, seed: int, own: Images, device: str, **more: Any) -> dpbnn.Release:
    """What comes out of one setting by itself; `more` goes to `dpbnn.fit`."""
    torch.manual_seed(seed)
    how: Any = {"method": setting.method, "plan": setting.plan(), "likelihood": dpbnn.Categorical(), "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpbnn.DpbnnWarning)
        model = setting.model().to(device)
        return dpbnn.fit(model, own.x, own.y, **how, execution=_execution_on(device), progress=False, **more)


def _execution_on(device: str) -> dpbnn.Execution:
    """In TF32 on a GPU; norms, clipping and noise are not touched by that."""
    return dpbnn.Execution(precision="tf32" if device == "cuda" else None)


def runs_of(setting: Setting, size: Size) -> list[Training]:
    """One for each seed."""
    return [Training(setting, seed, size) for seed in range(size.seeds)]


def found_by(setting: Setting, size: Size, found: Mapping[str, Found]) -> list[Found]:
    """What the runs of a setting found, by seed."""
    return [found[run.key] for run in runs_of(setting, size)]


def runs_in_three_ways(data: str, priors: Mapping[str, str], size: Size) -> list[Training]:
    """Of all methods, each with its prior, on both networks."""
    every = [three_ways(data, network, method, priors[method], size) for network in NETWORKS for method in METHODS]
    return [run for settings in every for setting in settings.values() for run in runs_of(setting, size)]


def rows_in_three_ways(
    data: str,
    priors: Mapping[str, str],
    size: Size,
    found: Mapping[str, Found],
    measured: Callable[[Sequence[Found]], Any],
) -> list[dict[str, Any]]:
    """What these runs found: a row for each network and method, with what is `measured` on the runs of each way."""
    rows = []
    for network in NETWORKS:
        for method in METHODS:
            settings = three_ways(data, network, method, priors[method], size)
            rows.append(
                {
                    "network": network,
                    "method": method,
                    "settings": {way: setting.to_json() for way, setting in settings.items()},
                    "seeds": list(range(size.seeds)),
                    "epsilon": {way: by_accountant(settings[way].plan()) for way in ("private", "best")},
                    "ours": {way: measured(found_by(setting, size, found)) for way, setting in settings.items()},
                }
            )
    return rows


@cache
def images(name: str, size: Size, device: str) -> Images:
    """As many as are wanted, standardized by public constants, on the device."""
    every = load_images(name).standardized()
    train, test = slice(0, size.records), slice(0, size.test_records)
    return Images(name, every.x[train], every.y[train], every.x_test[test], every.y_test[test]).to(device)


def _measured(release: dpbnn.Release, own: Images, job: Training) -> dict[str, Any]:
    how: Any = {"num_draws": job.size.draws, "seed": job.seed}
    labels = own.y_test.cpu()
    prediction: Any = release.predict(own.x_test, **how)
    epsilon = release.guarantee.epsilon if job.setting.is_private else None
    known = {"epsilon": epsilon, "steps_taken": release.settings["steps_taken"]}
    if not prediction.probabilities.isfinite().all():
        return known | dict.fromkeys(("figures", "reliability", "confidence", "foreign"))
    foreign: Any = release.predict(_foreign(own, job.size), **how)
    curve = metrics.classification.reliability_curve(prediction.probabilities, labels)
    histogram = metrics.classification.confidence_histogram(prediction.probabilities, labels)
    told_apart = {
        score: metrics.uncertainty.out_of_distribution_auroc(getattr(prediction, score), getattr(foreign, score))
        for score in ("mutual_information", "entropy")
    }
    return known | {
        "figures": {name: round(value, DECIMALS) for name, value in metrics.evaluate(prediction, labels).items()},
        "reliability": {name: _listed(getattr(curve, name)) for name in ("confidence", "accuracy", "count")},
        "confidence": {name: _listed(getattr(histogram, name)) for name in ("correct", "wrong")},
        "foreign": {score: round(value, DECIMALS) for score, value in told_apart.items()},
    }


@cache
def _foreign_images(name: str) -> Tensor:
    return load_images(FOREIGN[name]).x_test


def _foreign(own: Images, size: Size) -> Tensor:
    """Test images of another kind, standardized by the constants of the kind that was learned."""
    source = IMAGE_SETS[own.name]
    other = _foreign_images(own.name)[: size.test_records]
    return ((other - source.mean) / source.deviation).to(own.x_test)


def _listed(values: Tensor) -> list[Any]:
    """As JSON, which has no NaN."""
    return [None if value != value else round(value, DECIMALS) for value in values.tolist()]
