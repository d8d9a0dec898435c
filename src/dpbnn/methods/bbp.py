"""DP-BBP (Algorithm 3 of the paper): a Gaussian for each weight, fitted by its evidence lower bound.

    q(w) = N(mu, softplus(rho)^2),      w = mu + softplus(rho) e,      minimise E_q[sum_i l_i(w)] + KL(q || prior)

*aligned* (default): one draw of w a step, shared by the batch. The gradient G at w is released as in DP-SGD, and

    g_mu = G/B + grad_mu KL / n,      g_rho = (G/B) e sigmoid(rho) + grad_rho KL / n

are post-processing: any network, any optimizer, the noise of DP-SGD. *joint*: several draws a step, and each record's
averaged gradient in (mu, rho) is clipped as one vector. The KL takes no data: it stays outside the clip, and is divided
by n once (the paper has it whole in every record's loss).

    >>> import dpbnn
    >>> dpbnn.BBP(learning_rate=0.25, prior=dpbnn.Gaussian(0.1)).form
    'aligned'

References: Blundell et al. 2015 (arXiv 1505.05424); Jälkö et al. 2023 (arXiv 2210.15961) for aligned gradients.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch.optim import Optimizer

from dpbnn import _validate
from dpbnn.methods.descent import Descent, check_prior, of_network
from dpbnn.methods.kl import Draw, kl_gradient
from dpbnn.methods.method import Method
from dpbnn.own_draws import derived_seed, standard_normals
from dpbnn.posterior import MeanField
from dpbnn.priors import Gaussian, Prior
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import Schedule, check_length
from dpbnn.types import DpbnnError, Draws, NoisySum, Weights

__all__ = ["BBP", "BBPState"]

FORMS = ("aligned", "joint")
MEAN, RHO = "mean/", "rho/"


@dataclass(frozen=True)
class BBPState:
    """Means and rhos under one roof, updated in place, and the draws of the step under way."""

    parameters: Weights
    optimizer: Optimizer | None
    plan: PrivacyPlan
    seed: int
    under_way: "dict[int, _StepDraws]" = field(default_factory=dict)

    @property
    def mean(self) -> Weights:
        """By the weights' names."""
        return {name.removeprefix(MEAN): v for name, v in self.parameters.items() if name.startswith(MEAN)}

    @property
    def rho(self) -> Weights:
        """By the weights' names."""
        return {name.removeprefix(RHO): v for name, v in self.parameters.items() if name.startswith(RHO)}


@dataclass(frozen=True)
class _StepDraws:
    """A step's draws, its standard deviations, and ``d std / d rho = sigmoid(rho)``."""

    draws: list[Draw]
    std: Weights
    slope: Weights


@dataclass(frozen=True)
class BBP(Method[BBPState]):
    """Mean-field variational inference.

    Args:
        learning_rate: a number, or runs of (value, steps).
        prior: closed-form KL for a Gaussian one; by the step's own draws for others.
        form: "aligned" or "joint".
        num_draws: draws a step, for "joint".
        initial_std: c of the initial standard deviations ``c / sqrt(fan_in)`` (biases as their layer): every layer's
            output then starts with noise of about c times the size of its input. Never above a Gaussian prior's scale.
        momentum: as in `SGD`; so are `optimizer` and `options`.
    """

    learning_rate: Schedule
    prior: Prior = field(default_factory=lambda: Gaussian(1.0))
    form: str = "aligned"
    num_draws: int = 1
    initial_std: float = 0.1
    momentum: float = 0.0
    optimizer: str | type[Optimizer] = "SGD"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_prior(self.prior)
        _validate.one_of("form", self.form, FORMS)
        _validate.positive("initial_std", self.initial_std)
        if _validate.whole_number("num_draws", self.num_draws) > 1 and self.form == "aligned":
            raise DpbnnError(f"num_draws must be 1 for the aligned form, got {self.num_draws}; use form='joint'.")
        _ = self._descent

    @cached_property
    def _descent(self) -> Descent:
        return Descent(self.learning_rate, self.momentum, self.optimizer, self.options)

    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> BBPState:
        """The weights as means, with small spreads around them."""
        check_length("learning_rate", self.learning_rate, plan.steps)
        self.prior.check(list(of_network(weights)))
        mean = {name: values.detach().clone() for name, values in weights.items()}
        rho = {
            name: torch.full_like(values, _inverse_softplus(self._initial_std(name, weights)))
            for name, values in mean.items()
        }
        parameters = _both(mean, rho)
        return BBPState(parameters, self._descent.start(parameters), plan, seed)

    def _initial_std(self, name: str, weights: Weights) -> float:
        layer = weights.get(f"{name.rpartition('.')[0]}.weight".lstrip("."), weights[name])
        kernel = weights[name] if weights[name].dim() > 1 else layer
        std = self.initial_std / math.sqrt(kernel[0].numel() if kernel.dim() > 1 else 1)
        prior = self.prior.for_weight(name)
        return min(std, prior.scale) if isinstance(prior, Gaussian) else std

    def weights(self, state: BBPState, step: int) -> Weights | Draws:
        """One draw, or several with what rho does to each: ``dw / drho = e sigmoid(rho)``."""
        now = self._draws(state, step)
        if self.form == "aligned":
            return now.draws[0].weights
        pulls = tuple({name: e * now.slope[name] for name, e in draw.e.items()} for draw in now.draws)
        return Draws(tuple(draw.weights for draw in now.draws), pulls)

    def _draws(self, state: BBPState, step: int) -> _StepDraws:
        """Made once a step, and made again after an interruption, from the user's seed."""
        if step not in state.under_way:
            mean, rho = state.mean, state.rho
            std = {name: F.softplus(values) for name, values in rho.items()}
            draws = []
            for index in range(self.num_draws):
                e = standard_normals(mean, derived_seed(state.seed, step, index))
                draws.append(Draw({name: torch.addcmul(m, std[name], e[name]) for name, m in mean.items()}, e))
            state.under_way.clear()
            state.under_way[step] = _StepDraws(draws, std, {name: values.sigmoid() for name, values in rho.items()})
        return state.under_way[step]

    def update(self, state: BBPState, noisy: NoisySum, step: int) -> BBPState:
        """Descend in mean and rho along the released gradient and the KL's."""
        now = self._draws(state, step)
        kl_in_mean, kl_in_std = kl_gradient(self.prior, state.mean, now.std, now.draws)
        kl_in_rho = {name: gradient.mul_(now.slope[name]) for name, gradient in kl_in_std.items()}
        if self.form == "aligned":
            in_mean, e = noisy.gradients, now.draws[0].e
            in_rho = {name: (gradient * e[name]).mul_(now.slope[name]) for name, gradient in in_mean.items()}
        else:
            in_mean = {name: gradient[0] for name, gradient in noisy.gradients.items()}
            in_rho = {name: gradient[1] for name, gradient in noisy.gradients.items()}
        state.under_way.clear()
        plan = state.plan
        parts = [(_both(in_mean, in_rho), plan.batch_size), (_both(kl_in_mean, kl_in_rho), plan.dataset_size)]
        self._descent.step(state.optimizer, state.parameters, parts, step)
        return state

    def to_posterior(self, state: BBPState) -> MeanField:
        """The Gaussians."""
        mean = {name: values.clone() for name, values in state.mean.items()}
        return MeanField(mean, {name: F.softplus(values) for name, values in state.rho.items()})

    def state_to_save(self, state: BBPState) -> dict[str, Any]:
        """Means, rhos and the optimizer's own state."""
        return {"parameters": state.parameters, "optimizer": state.optimizer.state_dict() if state.optimizer else {}}

    def restored(self, state: BBPState, saved: Mapping[str, Any]) -> BBPState:
        """Means, rhos and the optimizer's own state, as saved."""
        for name, values in state.parameters.items():
            values.copy_(saved["parameters"][name])
        if state.optimizer is not None:
            state.optimizer.load_state_dict(saved["optimizer"])
        return state

    def report(self, plan: PrivacyPlan) -> dict[str, Any]:
        """The settings."""
        own = {"form": self.form, "num_draws": self.num_draws, "initial_std": self.initial_std}
        return {"method": "bbp", "prior": repr(self.prior), **own, **self._descent.settings()}


def _both(mean: Weights, rho: Weights) -> Weights:
    named = {MEAN + name: values for name, values in mean.items()}
    return named | {RHO + name: values for name, values in rho.items()}


def _inverse_softplus(std: float) -> float:
    return std + math.log(-math.expm1(-std))
