"""What cannot be private is refused by name, with the cure."""

import gc
import re
import weakref

import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping import check_model, clipped_gradient_sum
from dpbnn.errors import DpbnnError, DpbnnWarning
from dpbnn.models.likelihoods import Categorical


def tokens(**options):
    return lambda: nn.Sequential(nn.Embedding(5, 4, **options), nn.Flatten(), nn.Linear(24, 3))


def lazy():
    return nn.Sequential(nn.LazyLinear(3))


REFUSED = {
    "batch norm": (
        lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)),
        (6,),
        r"BatchNorm1d '0' mixes records; use GroupNorm",
    ),
    "batch norm without statistics": (
        lambda: nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False).eval(), nn.Linear(6, 3)),
        (6,),
        r"BatchNorm1d '0' mixes records",
    ),
    "instance norm with statistics": (
        lambda: nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True), nn.Flatten(), nn.Linear(24, 3)),
        (6, 4),
        r"InstanceNorm1d '0' keeps running statistics",
    ),
    "embedding with max_norm": (tokens(max_norm=1.0), (6,), r"Embedding '0' rewrites the rows"),
    "embedding scaled by frequency": (tokens(scale_grad_by_freq=True), (6,), r"Embedding '0' mixes records"),
    "lazy": (lazy, (6,), r"LazyLinear '0' has no shape yet"),
    "data parallel": (lambda: nn.DataParallel(nn.Linear(6, 3)), (6,), r"pass the plain module"),
    "compiled": (lambda: torch.compile(nn.Linear(6, 3)), (6,), r"torch.compile"),
    "all frozen": (lambda: nn.Linear(6, 3).requires_grad_(False), (6,), r"no parameter to train"),
}


def refuses(model, shape, message):
    """The model, by `clipped_gradient_sum`; whole numbers for one that has a table."""
    has_table = any(isinstance(module, nn.Embedding) for module in model.modules())
    x = torch.zeros(4, *shape, dtype=torch.long) if has_table else torch.randn(4, *shape)
    with pytest.raises(DpbnnError, match=message):
        clipped_gradient_sum(model, Categorical(), x, torch.zeros(4, dtype=torch.long), 1.0)


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning", "ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_cannot_be_private_are_refused_by_name(name):
    make, shape, message = REFUSED[name]
    refuses(make(), shape, message)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # deprecated by newer versions, which say so in several ways
def test_a_scripted_module_is_refused():
    with pytest.raises(DpbnnError, match="TorchScript"):
        clipped_gradient_sum(
            torch.jit.script(nn.Linear(6, 3)),
            Categorical(),
            torch.randn(4, 6),
            torch.zeros(4, dtype=torch.long),
            1.0,
        )


def test_a_checked_model_can_be_forgotten():
    model = nn.Linear(6, 3)
    check_model(model, Categorical(), torch.randn(4, 6), torch.zeros(4, dtype=torch.long))
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.mark.guarantees("The decision does not depend on the data.")
def test_the_decision_does_not_depend_on_the_data():
    model = nn.Sequential(nn.Linear(6, 3))
    x, y = torch.full((4, 6), torch.nan), torch.full((4,), -7)
    assert check_model(model, Categorical(), x, y).engine == "book_keeping"


def test_a_model_that_is_thawed_between_calls_is_checked_again():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    clipped_gradient_sum(model, Categorical(), x, y, 1.0)
    with pytest.raises(DpbnnError, match="BatchNorm1d"):
        clipped_gradient_sum(model.train(), Categorical(), x, y, 1.0)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.r, self.last = kind(6, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.r(x)[0][:, -1])


class PReLUs(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.TransformerEncoderLayer(width, 2, width, 0.0, batch_first=True)
        self.acts, self.last = nn.ModuleList(nn.PReLU() for _ in range(4)), nn.Linear(width, 3)

    def forward(self, x):
        h = self.first(x).mean(1)
        return self.last(sum(act(h) for act in self.acts))


SLOW = {
    "gru": (
        lambda: Recurrent(nn.GRU),
        (5, 6),
        r"^Neither .* differentiate GRU 'r'; .* nn\.Linear, as docs/clipping\.md",
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 6), r"no rule for LSTM 'r'; .* vmap, .* nn\.Linear, as docs/clipping\.md"),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(128, 128)), nn.Linear(128, 3)),
        (128,),
        r"no rule for ParametrizedLinear '0'; .* which layers are fast",
    ),
    "several beside attention": (
        lambda: PReLUs(64),
        (5, 64),
        r"no rule for PReLU 'acts\.0', PReLU 'acts\.1', PReLU 'acts\.2' and 1 more; .* which layers are fast",
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", SLOW)
@pytest.mark.parametrize("call", ["fit", "check_model"])
def test_what_makes_a_model_slow_is_named_with_a_cure_at_the_line_that_called(name, call, recwarn):
    make, shape, message = SLOW[name]
    x, y = torch.randn(4, *shape), torch.zeros(4, dtype=torch.long)
    plan = dpbnn.PrivacyPlan(4, 2, 1, 1.0, 2.0, 1e-3)
    if call == "fit":
        dpbnn.fit(make(), x, y, method=dpbnn.SGD(0.1), plan=plan, likelihood=Categorical())
    else:
        check_model(make(), Categorical(), x, y)
    (found,) = [warning for warning in recwarn if re.search(message, str(warning.message))]
    assert issubclass(found.category, DpbnnWarning)
    assert found.filename == __file__


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), lambda: nn.Sequential(nn.PReLU(), nn.Linear(6, 3))])
def test_what_is_fast_or_small_gets_no_warning(make):
    assert check_model(make(), Categorical(), torch.randn(4, 6), torch.zeros(4, dtype=torch.long))


def test_a_switch_that_is_turned_after_the_trial_is_noticed():
    class Switched(nn.Linear):
        mix = False

        def forward(self, x):
            z = super().forward(x)
            return z - z.mean(dim=0, keepdim=True) if self.mix else z

    model = Switched(3, 2)
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    check_model(model, Categorical(), x, y)
    model.mix = True
    with pytest.raises(DpbnnError, match="mixes records"):
        check_model(model, Categorical(), x, y)
