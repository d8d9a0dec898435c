"""Runs that are looked at along the way: after each epoch, or some twenty times."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import dpbnn
from dpbnn.experiments.item import Found, Size
from dpbnn.experiments.seeded_run import SeededRun
from dpbnn.experiments.settings import Setting
from dpbnn.experiments.training import fitted, images, trained

__all__ = ["AccuracyCurve", "IterateAccuracy", "iterates_of", "keeping", "steps_of_iterates"]


class _AlongTheWay(SeededRun):
    """Only accuracy is measured."""

    @property
    def measured(self) -> dict[str, Any]:
        """On so many images."""
        return {"test_records": self.size.test_records}


class IterateAccuracy(_AlongTheWay):
    """A run of plain DP-SGD, or of DP-SGLD, whose iterate after each epoch is tried on the test images; a job.

    DP-SGD is trained as the sampler that it is: DP-SGLD with learning rate eta / n, at the temperature that its noise
    implies, has the same iterates, and keeps them.
    """

    what = "by epoch"

    @classmethod
    def run_all(cls, jobs: "Sequence[IterateAccuracy]", device: str) -> Iterator[Found]:
        """All at once, where a GPU can."""
        own = images(jobs[0].setting.data, jobs[0].size, device)
        releases = trained([(keeping(job.setting, _epochs(job.setting)), job.seed) for job in jobs], own, device)
        for job, release in zip(jobs, releases, strict=True):
            prediction: Any = release.predict(own.x_test, num_draws=job.setting.steps, seed=0, keep_draws=True)
            correct = prediction.draws.nan_to_num(-1).argmax(dim=-1) == own.y_test.cpu()
            correct &= prediction.draws.isfinite().all(dim=-1)  # what has diverged is never right
            accuracy = [round(value, 5) for value in correct.double().mean(dim=1).tolist()]
            yield {"seed": job.seed, "accuracy": accuracy, "temperature": release.settings["temperature"]}


def iterates_of(setting: Setting, size: Size) -> list[IterateAccuracy]:
    """One run for each seed."""
    return [IterateAccuracy(setting, seed, size) for seed in range(size.seeds)]


def _epochs(setting: Setting) -> int:
    return max(2, round(setting.epochs))


def steps_of_iterates(setting: Setting) -> tuple[int, ...]:
    """How many steps have been taken at each iterate that `IterateAccuracy` looks at."""
    thin, count = setting.steps // _epochs(setting), _epochs(setting)
    return tuple(setting.steps - (count - 1 - index) * thin for index in range(count))


def keeping(setting: Setting, count: int) -> Setting:
    """The sampler with the same iterates, which keeps so many of them, evenly spaced; the last is the run's last."""
    steps, method = setting.steps, setting.method
    sampler = method.as_sgld(setting.plan())[0] if isinstance(method, dpbnn.SGD) else method
    assert isinstance(sampler, dpbnn.SGLD)
    thin = steps // count
    keep = dpbnn.KeepSamples(burn_in=steps - 1 - (count - 1) * thin, thin=thin)
    return replace(setting, method=replace(sampler, keep_as=keep))


class AccuracyCurve(_AlongTheWay):
    """A run of any method whose posterior so far is tried on the test images some twenty times; a job."""

    what = "watched"

    @property
    def together(self) -> Hashable:
        """Each by itself."""
        return self.key

    @classmethod
    def run_all(cls, jobs: "Sequence[AccuracyCurve]", device: str) -> Iterator[Found]:
        """One after another."""
        for job in jobs:
            setting = job.setting
            own = images(setting.data, job.size, device)
            release = fitted(setting, job.seed, own, device, public_data=(own.x_test, own.y_test))
            epochs = [round(point["step"] * setting.batch_size / setting.records, 3) for point in release.history]
            accuracy = [round(point["public_accuracy"], 5) for point in release.history]
            yield {"seed": job.seed, "epoch": epochs, "accuracy": accuracy}
