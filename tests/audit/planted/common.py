"""What the parts share: a bug, a small network with records, and patches at the seams of a step."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

import dpbnn
from dpbnn.audit import probe
from dpbnn.audit.mechanism import audit_mechanism
from dpbnn.clipping.objective import Objective
from dpbnn.release import draft
from dpbnn.training.steps import captured, eager

PLAN = dpbnn.PrivacyPlan(dataset_size=50, batch_size=50, steps=4, clip_norm=0.7, noise_multiplier=1.0, delta=1e-5)
X, Y = torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
LABELS = torch.zeros(0, dtype=torch.long)
STEPS = 20


@dataclass(frozen=True)
class Bug:
    """What is wrong, how it is planted, and what must notice."""

    name: str
    plant: Callable
    detector: Callable
    is_slow: bool = False


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def attacked(model=None, likelihood=None, y=LABELS, columns=5, plan=PLAN, observations=6_000, **how):
    """Whether an attack on single steps finds anything wrong."""
    likelihood = likelihood or dpbnn.Categorical()
    empty = torch.zeros(0, columns), y
    return not audit_mechanism(model or network(), likelihood, *empty, plan, observations=observations, **how).holds


def fitted(x=X, y=Y, method=None, **options):
    plan = replace(PLAN, batch_size=10, steps=STEPS)
    settings = {"method": method or dpbnn.SGD(0.1), "plan": plan, "likelihood": dpbnn.Categorical(), "progress": False}
    return dpbnn.fit(network(), x, y, **settings | options)


def before_noise(change):
    """A patch of what goes into `add_noise`; `change` gives its sum and multiplier."""

    def plant(patch):
        original = eager.add_noise

        def planted(clipped, noise_multiplier, randomness, step):
            return original(*change(clipped, noise_multiplier), randomness, step)

        patch.setattr(eager, "add_noise", planted)

    return plant


def clip_by(patch, planted):
    """In training and in the attack alike, which compares releases with the same sums without noise."""
    for module in (eager, captured, probe):
        patch.setattr(module, "clip_and_sum", planted)


def after_clipping(change):
    """A patch of the clipped sum; `change` gets it, how to have it with other arguments, and the inputs."""

    def plant(patch):
        original = eager.clip_and_sum

        def planted(checked, where, x, y, settings, **how):
            def again(**other):
                return original(checked, where, x, y, replace(settings, **other), **how)

            return change(again(), again, x)

        clip_by(patch, planted)

    return plant


def seeded_drafts(patch):
    """Private records are predicted with masks that a seed tells."""

    def planted(self, x, num_draws):
        return draft.predict(Objective(self.model, self.likelihood), self.posterior, x, num_draws, seed=0)

    patch.setattr(draft.Draft, "predict", planted)


def scaled(sums, factor):
    return replace(sums, gradients={name: values * factor for name, values in sums.gradients.items()})
