"""DP-BBP (Algorithm 3 of the paper): a Gaussian for each weight, fitted by its evidence lower bound.

    q(w) = N(mu, softplus(rho)^2),      w = mu + softplus(rho) e,      minimise E_q[sum_i l_i(w)] + KL(q || prior)

*aligned* (default): one draw of w a step, shared by the batch. The gradient G at w is released as in DP-SGD, and

    g_mu = G/B + grad_mu KL / n,      g_rho = (G/B) e sigmoid(rho) + grad_rho KL / n

are post-processing: any network, any optimizer, the noise of DP-SGD. *joint*: several draws a step; the gradient in
(mu, rho) of each record, averaged over the draws, is clipped as one vector. The KL takes no data: it stays outside the
clip, and is divided by n once (in the paper every record's loss has all of it).

    >>> import dpbnn
    >>> dpbnn.BBP(learning_rate=0.25, prior=dpbnn.Gaussian(0.1)).form
    'aligned'

References: Blundell et al. 2015 (arXiv 1505.05424); Jälkö et al. 2023 (arXiv 2210.15961) for aligned gradients.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from dpbnn import _validate
from dpbnn.device.flat import of_each
from dpbnn.errors import DpbnnError
from dpbnn.methods.descent import Descent, Term, of_network
from dpbnn.methods.kl import Draw, kl_gradient
from dpbnn.methods.method import Method, Prepared
from dpbnn.models.priors import Gaussian, Prior, checked_prior
from dpbnn.posterior import MeanField
from dpbnn.privacy.plan import PrivacyPlan
from dpbnn.schedule import Schedule, check_length
from dpbnn.seeds import FlatWeights, derived_seed
from dpbnn.types import Draws, NoisySum, Weights

__all__ = ["BBP", "BBPState"]

FORMS = ("aligned", "joint")
LARGEST_RHO = 80.0
"""Above it the exponential leaves float32; softplus is the identity long before."""
MEAN, RHO = "mean/", "rho/"


@dataclass
class BBPState:
    """Means and rhos, which are updated in place, also as `parameters` by name, and room for a step's draws."""

    mean: FlatWeights
    rho: FlatWeights
    parameters: Weights
    optimizer: Optimizer | None
    plan: PrivacyPlan
    seed: int
    draws: "_StepDraws"


class _StepDraws:
    """The draws of one step, ``w = mean + std e``, its standard deviations, and ``d std / d rho = sigmoid(rho)``.

    Steps come in pairs with opposite draws, e and -e. Each is standard normal. The gradient of rho is a product with e:
    the part of it that both steps share cancels. Half as many numbers are drawn.
    """

    def __init__(self, like: Weights, num_draws: int) -> None:
        self.step = -1  # whose e these are: none's yet
        self.std, self.slope = FlatWeights(like), FlatWeights(like)  # used again: fresh memory would take longer
        self.e = [FlatWeights(like) for _ in range(num_draws)]
        self.w = [FlatWeights(like) for _ in range(num_draws)]
        self.each = [Draw(w.views, e.views) for w, e in zip(self.w, self.e, strict=True)]

    def compute(self, state: BBPState) -> None:
        """Set the rest from mean, rho and e, for each call of `weights`: each may be captured in a graph of its own."""
        torch.sigmoid(state.rho.numbers, out=self.slope.numbers)
        std = torch.clamp(state.rho.numbers, max=LARGEST_RHO, out=self.std.numbers).exp_().log1p_()
        for e, w in zip(self.e, self.w, strict=True):
            torch.addcmul(state.mean.numbers, std, e.numbers, out=w.numbers)

    def draw(self, seed: int, step: int) -> None:
        """Draw the e of a step from the user's seed, unless they have been drawn."""
        is_same_pair = self.step // 2 == step // 2
        for index, e in enumerate(self.e):
            if not is_same_pair:
                e.draw_normals(derived_seed(seed, step // 2, index))
            if step % 2 != (self.step % 2 if is_same_pair else 0):
                e.numbers.neg_()
        self.step = step


@dataclass(frozen=True)
class BBP(Method[BBPState]):
    """Mean-field variational inference.

    Args:
        learning_rate: a number, or runs of (value, steps).
        prior: the KL is in closed form for a Gaussian prior, and taken at the step's draws for others.
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
        checked_prior("prior", self.prior)
        _validate.one_of("form", self.form, FORMS)
        _validate.positive("initial_std", self.initial_std)
        if _validate.whole_number("num_draws", self.num_draws) > 1 and self.form == "aligned":
            raise DpbnnError(f"num_draws must be 1 for the aligned form, got {self.num_draws}; use form='joint'.")
        object.__setattr__(self, "learning_rate", self._descent.learning_rate)

    @cached_property
    def _descent(self) -> Descent:
        return Descent(self.learning_rate, self.momentum, self.optimizer, self.options)

    def prepare(self, plan: PrivacyPlan) -> Prepared:
        """The plan as it is, and the settings."""
        check_length("learning_rate", self.learning_rate, plan.steps)
        settings = {"form": self.form, "num_draws": self.num_draws, "initial_std": self.initial_std}
        return Prepared(plan, {"method": "bbp", "prior": repr(self.prior), **settings, **self._descent.settings()})

    def init(self, weights: Weights, plan: PrivacyPlan, seed: int) -> BBPState:
        """The weights as means, with small spreads around them."""
        self.prior.check(list(of_network(weights)))
        mean, rho = FlatWeights.copied(weights), FlatWeights(weights)
        for name, values in rho.views.items():
            values.fill_(_inverse_softplus(self._initial_std(name, weights)))
        parameters = _both(mean.views, rho.views)
        optimizer = self._descent.start(parameters)
        return BBPState(mean, rho, parameters, optimizer, plan, seed, _StepDraws(weights, self.num_draws))

    def _initial_std(self, name: str, weights: Weights) -> float:
        layer = weights.get(f"{name.rpartition('.')[0]}.weight".lstrip("."), weights[name])
        kernel = weights[name] if weights[name].dim() > 1 else layer
        std = self.initial_std / math.sqrt(kernel[0].numel() if kernel.dim() > 1 else 1)
        prior = self.prior.for_weight(name)
        return min(std, prior.scale) if isinstance(prior, Gaussian) else std

    def begin_step(self, state: BBPState, step: int) -> Hashable | None:
        """Draw e. The phase is the learning rate, unless the optimizer counts on the host."""
        state.draws.draw(state.seed, step)
        return self._descent.phase(state.optimizer, step)

    def weights(self, state: BBPState, step: int) -> Weights | Draws:
        """One draw, or several draws with their derivatives ``dw / drho = e sigmoid(rho)``."""
        draws = state.draws
        draws.compute(state)
        if self.form == "aligned":
            return draws.each[0].weights
        slope = draws.slope.views
        derivatives = tuple({name: e * slope[name] for name, e in draw.e.items()} for draw in draws.each)
        return Draws(tuple(draw.weights for draw in draws.each), derivatives)

    def update(self, state: BBPState, noisy: NoisySum, step: int) -> BBPState:
        """Descend in mean and rho along the released gradient and the KL's, at the draws that `weights` has left."""
        draws, n, B = state.draws, state.plan.dataset_size, state.plan.batch_size
        slope = _both({}, draws.slope.views)
        kl_in_mean, kl_in_std = kl_gradient(self.prior, state.mean.views, draws.std.views, draws.each)
        terms = [Term(_both({}, part), n * divisor, slope) for part, divisor in kl_in_std]
        terms += [Term(_both(part, {}), n * divisor) for part, divisor in kl_in_mean]
        if self.form == "aligned":
            first = draws.each[0]
            in_std = of_each(torch.mul, dict(noisy.gradients), first.e, into=first.weights)  # whose memory is free now
            terms += [Term(_both(noisy.gradients, {}), B), Term(_both({}, in_std), B, slope)]
        else:
            in_mean, in_rho = ({name: g[i] for name, g in noisy.gradients.items()} for i in (0, 1))
            terms.append(Term(_both(in_mean, in_rho), B))
        self._descent.step(state.optimizer, state.parameters, terms, step)
        return state

    def to_posterior(self, state: BBPState) -> MeanField:
        """A Gaussian for each weight."""
        mean = {name: values.clone() for name, values in state.mean.views.items()}
        return MeanField(mean, {name: F.softplus(values) for name, values in state.rho.views.items()})


def _both(mean: Mapping[str, Tensor], rho: Mapping[str, Tensor]) -> Weights:
    """Tensors for means and rhos, under the names of the parameters."""
    named = {MEAN + name: values for name, values in mean.items()}
    return named | {RHO + name: values for name, values in rho.items()}


def _inverse_softplus(std: float) -> float:
    return std + math.log(-math.expm1(-std))
