"""Training runs of image classifiers, and everything that is measured on them."""

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

import dpbnn
from dpbnn import metrics
from dpbnn.data import IMAGE_SETS, Images, load_images
from dpbnn.experiments.item import Job, Later, Outcome, Results, Size, short_hash
from dpbnn.experiments.settings import METHODS, NETWORKS, Setting, three_ways
from dpbnn.experiments.words import by_accountant, rounded_up

__all__ = [
    "IterateAccuracy",
    "SeededRun",
    "Training",
    "about",
    "epsilons",
    "figures",
    "images",
    "keeping",
    "rounded",
    "rows_in_three_ways",
    "steps_of_iterates",
    "tightest_epsilon",
]

FOREIGN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
"""The kind of images that a classifier of the other kind has never seen."""


@dataclass(frozen=True)
class SeededRun(Job):
    """A setting with a seed: of the network's initial weights and of the method's draws; a job.

    Sampling and noise are fresh in every run.
    """

    setting: Any
    seed: int
    size: Size
    purpose: ClassVar[str] = ""
    """A word for the key, where runs of one setting are measured in several ways."""
    depends_on: ClassVar[tuple[str, ...]] = ("test_records", "draws")
    """The fields of the size on which the outcome depends."""
    at_once: ClassVar[bool] = True
    """Whether runs of one length on the same data are trained at once, where a GPU can."""

    @classmethod
    def of(cls, setting: Any, size: Size, seeds: int | None = None) -> list[Self]:
        """One run for each seed."""
        return [cls(setting, seed, size) for seed in range(size.seeds if seeds is None else seeds)]

    @property
    def key(self) -> str:
        """For example "mnist, CNN, DP-SGLD, 1f0a93, seed 0, by epoch"."""
        name = f"{self.setting.label}, {short_hash(self.settings)}, seed {self.seed}"
        return f"{name}, {self.purpose}" if self.purpose else name

    @property
    def settings(self) -> dict[str, Any]:
        """The setting, the seed, and how much is measured."""
        return {"setting": self.setting.to_json(), "seed": self.seed} | self.measured

    @property
    def measured(self) -> dict[str, Any]:
        """How much the run measures, as JSON."""
        return {name: getattr(self.size, name) for name in self.depends_on}

    @property
    def group(self) -> Hashable:
        """Data, network and length of the run, or the run itself if it is trained alone."""
        return (self.setting.data, self.setting.network, self.setting.steps) if self.at_once else self.key

    @property
    def trained_setting(self) -> Any:
        """The setting in the form that keeps the weights to be measured."""
        return self.setting

    def data(self, device: str) -> Any:
        """The records for training, as many as the setting says, and for tests."""
        data, records = images(self.setting.data, self.size, device), self.setting.records
        return replace(data, x=data.x[:records], y=data.y[:records])

    @abstractmethod
    def measure(self, release: dpbnn.Release, data: Any) -> Outcome:
        """The outcome of the run, from its release."""

    def fit(self, data: Any, **more: Any) -> dpbnn.Release:
        """Train this run alone; `more` goes to `dpbnn.fit`."""
        device = data.x.device.type
        how = {**vars(self._setup(device)), "execution": _execution_on(device), **more}
        with warnings.catch_warnings(action="ignore", category=dpbnn.DpbnnWarning):
            return dpbnn.fit(X=data.x, y=data.y, progress=False, **how)

    @classmethod
    def run_all(cls, jobs: "Sequence[Self]", device: str) -> Iterator[Outcome]:
        """Train all runs at once, where a GPU can, or each by itself, and measure them one after another."""
        if not cls.at_once:
            for job in jobs:
                data = job.data(device)
                yield job.measure(job.fit(data), data)
            return
        data, setups = jobs[0].data(device), [job._setup(device) for job in jobs]
        with warnings.catch_warnings(action="ignore", category=dpbnn.DpbnnWarning):
            releases = dpbnn.fit_many(setups, data.x, data.y, execution=_execution_on(device), progress=False)
        for job, release in zip(jobs, releases, strict=True):
            yield job.measure(release, data)

    def _setup(self, device: str) -> dpbnn.Setup:
        torch.manual_seed(self.seed)
        setting = self.trained_setting
        return dpbnn.Setup(setting.model().to(device), setting.method, setting.plan(), setting.likelihood, self.seed)


def _execution_on(device: str) -> dpbnn.Execution:
    """TF32 on a GPU, which does not touch norms, clipping and noise."""
    return dpbnn.Execution(precision="tf32" if device == "cuda" else None)


class Training(SeededRun):
    """A run and everything that is measured on it; a job.

    All figures of `dpbnn.metrics.evaluate` on the test images, the bins behind the calibration errors, and how well
    uncertainty tells images of another kind apart; nothing where the network has diverged.
    """

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """All figures, or None for each kind if the network has diverged."""
        how: Any = {"num_draws": self.size.draws, "seed": self.seed}
        labels = data.y_test.cpu()
        prediction: Any = release.predict(data.x_test, **how)
        epsilon = release.guarantee.epsilon if self.setting.is_private else None
        outcome = {"epsilon": epsilon, "steps_taken": release.settings["steps_taken"]}
        if not prediction.probabilities.isfinite().all():
            return outcome | dict.fromkeys(("figures", "reliability", "confidence", "foreign"))
        foreign: Any = release.predict(_foreign(data, self.size), **how)
        curve = metrics.classification.reliability_curve(prediction.probabilities, labels)
        histogram = metrics.classification.confidence_histogram(prediction.probabilities, labels)
        areas = {
            score: metrics.uncertainty.out_of_distribution_auroc(getattr(prediction, score), getattr(foreign, score))
            for score in ("mutual_information", "entropy")
        }
        return outcome | {
            "figures": rounded(metrics.evaluate(prediction, labels)),
            "reliability": {name: rounded(getattr(curve, name)) for name in ("confidence", "accuracy", "count")},
            "confidence": {name: rounded(getattr(histogram, name)) for name in ("correct", "wrong")},
            "foreign": rounded(areas),
        }


class IterateAccuracy(SeededRun):
    """A run of plain DP-SGD, or of DP-SGLD, whose iterate after each epoch is tried on the test images; a job.

    DP-SGD is trained as the sampler that it is: DP-SGLD with learning rate eta / n, at the temperature that its noise
    implies, has the same iterates, and keeps them.
    """

    purpose, depends_on = "by epoch", ("test_records",)

    @property
    def trained_setting(self) -> Setting:
        """The sampler that keeps an iterate for each epoch."""
        return keeping(self.setting, _epochs(self.setting))

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """The accuracy of each iterate, and the temperature."""
        prediction: Any = release.predict(data.x_test, num_draws=self.setting.steps, seed=0, keep_draws=True)
        correct = prediction.draws.nan_to_num(-1).argmax(dim=-1) == data.y_test.cpu()
        correct &= prediction.draws.isfinite().all(dim=-1)  # what has diverged is never right
        accuracy = correct.double().mean(dim=1)
        return {"accuracy": rounded(accuracy), "temperature": release.settings["temperature"]}


def _epochs(setting: Setting) -> int:
    return max(2, round(setting.epochs))


def steps_of_iterates(setting: Setting) -> tuple[int, ...]:
    """How many steps have been taken at each iterate that `IterateAccuracy` looks at."""
    steps, count = setting.steps, _epochs(setting)
    return tuple(range(steps - (count - 1) * (steps // count), steps + 1, steps // count))


def keeping(setting: Setting, count: int) -> Setting:
    """The sampler with the same iterates, which keeps `count` of them, evenly spaced, the last one included."""
    steps, method = setting.steps, setting.method
    sampler = method.as_sgld(setting.plan())[0] if isinstance(method, dpbnn.SGD) else method
    assert isinstance(sampler, dpbnn.SGLD)
    thin = steps // count
    keep = dpbnn.KeepSamples(burn_in=steps - 1 - (count - 1) * thin, thin=thin)
    return replace(setting, method=replace(sampler, keep_as=keep))


def figures(name: str, setting: Setting, size: Size, kind: str = "figures") -> Later:
    """One figure of each run of the setting, None where the run has diverged."""
    return Later(Training.of(setting, size), lambda runs: [run[kind] and run[kind][name] for run in runs])


def epsilons(setting: Any) -> Later:
    """Epsilon of the setting by every accountant."""
    return Later([], lambda _: by_accountant(setting.plan()))


def tightest_epsilon(setting: Setting) -> Later:
    """Epsilon of the setting by the tightest valid accountant, rounded up."""
    return Later([], lambda _: rounded_up(setting.plan().epsilon()))


def about(setting: Any, seeds: int) -> Results:
    """What all rows state: the setting, its seeds and its epsilon."""
    return {"settings": setting.to_json(), "seeds": list(range(seeds)), "epsilon": epsilons(setting)}


def rows_in_three_ways(data: str, priors: Mapping[str, str], kind: str, names: Iterable[str], size: Size) -> Results:
    """A row for each network and method, with the figures `names` of one kind for each way to train."""
    rows = []
    for network, method in product(NETWORKS, METHODS):
        ways = three_ways(data, network, method, priors[method], size)
        rows.append(
            {
                "network": network,
                "method": method,
                "settings": {way: setting.to_json() for way, setting in ways.items()},
                "seeds": list(range(size.seeds)),
                "epsilon": {way: epsilons(ways[way]) for way in ("private", "best")},
                "ours": {way: {name: figures(name, ways[way], size, kind) for name in names} for way in ways},
            }
        )
    return {"rows": rows}


@cache
def images(name: str, size: Size, device: str) -> Images:
    """As many images as the size says, standardized by public constants, on the device."""
    data = load_images(name).standardized()
    train, test = slice(0, size.records), slice(0, size.test_records)
    return Images(name, data.x[train], data.y[train], data.x_test[test], data.y_test[test]).to(device)


@cache
def _foreign_images(name: str) -> Tensor:
    return load_images(FOREIGN[name]).x_test


def _foreign(data: Images, size: Size) -> Tensor:
    """Test images of another kind, standardized by the constants of the kind that was learned."""
    source = IMAGE_SETS[data.name]
    other = _foreign_images(data.name)[: size.test_records]
    return ((other - source.mean) / source.deviation).to(data.x_test)


def rounded(values: Any, decimals: int = 5) -> Any:
    """Round all numbers in a tensor, a list or a dictionary, and make NaN None, as JSON wants it."""
    if isinstance(values, dict):
        return {name: rounded(value, decimals) for name, value in values.items()}
    if isinstance(values, Tensor | list):
        return [rounded(value, decimals) for value in (values.tolist() if isinstance(values, Tensor) else values)]
    return None if values != values else round(values, decimals)
