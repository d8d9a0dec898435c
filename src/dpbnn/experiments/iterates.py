"""Runs of DP-SGD and DP-SGLD whose iterates are kept: after each epoch, or all along."""

from dataclasses import replace
from typing import Any

import dpbnn
from dpbnn.data import Images
from dpbnn.experiments.item import Outcome
from dpbnn.experiments.settings import Setting
from dpbnn.experiments.training import ImageRun

__all__ = ["IterateAccuracy", "keeping", "steps_of_iterates"]


class IterateAccuracy(ImageRun):
    """A run of plain DP-SGD, or of DP-SGLD, whose iterate after each epoch is tried on the test images; a job.

    DP-SGD is trained as the sampler that it is: DP-SGLD with learning rate eta / n, at the temperature that its noise
    implies, has the same iterates, and keeps them.
    """

    purpose = "by epoch"

    @property
    def measured(self) -> dict[str, Any]:
        """So many images."""
        return {"test_records": self.size.test_records}

    @property
    def trained_setting(self) -> Setting:
        """With an iterate for each epoch."""
        return keeping(self.setting, _epochs(self.setting))

    def measure(self, release: dpbnn.Release, data: Images) -> Outcome:
        """The accuracy of each iterate, and the temperature."""
        prediction: Any = release.predict(data.x_test, num_draws=self.setting.steps, seed=0, keep_draws=True)
        correct = prediction.draws.nan_to_num(-1).argmax(dim=-1) == data.y_test.cpu()
        correct &= prediction.draws.isfinite().all(dim=-1)  # what has diverged is never right
        accuracy = [round(value, 5) for value in correct.double().mean(dim=1).tolist()]
        return {"accuracy": accuracy, "temperature": release.settings["temperature"]}


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
