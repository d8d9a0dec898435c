"""Draws of a model come from generators of the caller's: whatever anybody seeds, whichever operation draws."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from dpbnn.device.generators import Generators, drawing_from, without_fast_path
from dpbnn.errors import DpbnnError

ONES = torch.ones(40, 6)
IMAGES = torch.ones(4, 30, 3, 3)
SEQUENCES = torch.arange(3.0 * 5 * 8).reshape(3, 5, 8) / 60
DRAWS = {
    "rand": lambda: torch.rand(30),
    "randn": lambda: torch.randn(3, 5),
    "randint": lambda: torch.randint(100, (30,)),
    "randint from": lambda: torch.randint(3, 100, (30,)),
    "randperm": lambda: torch.randperm(30),
    "rand_like": lambda: torch.rand_like(ONES),
    "randn_like": lambda: torch.randn_like(ONES),
    "randint_like": lambda: torch.randint_like(ONES, 90),
    "randint_like from": lambda: torch.randint_like(ONES, 2, 90),
    "bernoulli": lambda: torch.bernoulli(ONES / 2),
    "normal": lambda: torch.normal(0.0, 1.0, (20,)),
    "normal around": lambda: torch.normal(ONES, 1.0),
    "multinomial": lambda: torch.multinomial(ONES, 3),
    "poisson": lambda: torch.poisson(ONES),
    "gamma": lambda: torch.distributions.Gamma(2.0, 2.0).sample((20,)),
    "uniform_": lambda: torch.empty(9).uniform_(),
    "exponential_": lambda: torch.empty(9).exponential_(),
    "dropout": lambda: F.dropout(ONES),
    "dropout in inference mode": lambda: torch.inference_mode()(F.dropout)(ONES).clone(),
    "alpha dropout": lambda: F.alpha_dropout(ONES, 0.5, True),
    "channels": lambda: F.dropout2d(IMAGES),
    "channels, alpha": lambda: F.feature_alpha_dropout(IMAGES, 0.5, True),
    "rrelu": lambda: F.rrelu(-ONES, training=True),
    "gumbel": lambda: F.gumbel_softmax(ONES),
    "a layer's first weights": lambda: nn.Linear(4, 4).weight.detach(),
    "attention": lambda: F.scaled_dot_product_attention(SEQUENCES, SEQUENCES, SEQUENCES, dropout_p=0.5),
    "attention module": lambda: ATTENTION(SEQUENCES, SEQUENCES, SEQUENCES, need_weights=False)[0].detach(),
    "transformer": lambda: TRANSFORMER(SEQUENCES).detach(),
    "lstm": lambda: LSTM(SEQUENCES)[0].detach(),
    "vmap": lambda: vmap(F.dropout, randomness="different")(ONES),
    "vmap of gradients": lambda: vmap(grad(lambda x: (F.dropout(x) * x).sum()), randomness="different")(ONES),
    "native dropout": lambda: torch.native_dropout(ONES, 0.5, True)[0],
}
ATTENTION = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
TRANSFORMER = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
LSTM = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)


@pytest.mark.guarantees("Seeding the default generators, in any thread, changes nothing that is drawn inside.")
@pytest.mark.guarantees("Inside, torch's default generators are neither read nor changed.")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_whatever_draws_draws_from_the_given_generators_alone(draw):
    found = []
    for seed, of_the_process in ((1, 10), (2, 11), (1, 12)):
        torch.manual_seed(of_the_process)
        before = torch.get_rng_state()
        with drawing_from(Generators.seeded(seed)) as generators:
            found.append(draw())
        assert torch.equal(torch.get_rng_state(), before)
        assert generators.used
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_a_generator_that_is_named_stays():
    alone, inside = (torch.Generator().manual_seed(5) for _ in range(2))
    expected = torch.rand(4, generator=alone)
    with drawing_from(Generators.seeded(1)) as generators:
        assert torch.equal(torch.rand(4, generator=inside), expected)
    assert not generators.used


@pytest.mark.guarantees("What draws in a way that cannot be redirected is refused.")
def test_what_draws_without_a_generator_is_refused():
    with torch.library._scoped_library("of_a_user", "DEF") as library:
        library.define("jitter(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
        library.impl("jitter", lambda x: x + torch.empty_like(x).uniform_(), "CPU")
        with drawing_from(Generators.seeded(1)), pytest.raises(DpbnnError, match="takes no generator"):
            torch.ops.of_a_user.jitter(ONES)


def test_what_does_not_draw_is_not_taken_for_drawing():
    with drawing_from(Generators.seeded(1)) as generators:
        F.dropout(ONES, training=False)
        F.scaled_dot_product_attention(SEQUENCES, SEQUENCES, SEQUENCES)
        nn.Sequential(nn.LayerNorm(6), nn.Tanh())(ONES)
        nn.Linear(3, 2, device="meta")
    assert not generators.used


def test_dropout_has_its_rate_and_its_gradient():
    x = torch.ones(200_000, requires_grad=True)
    for drop in (lambda: F.dropout(x, 0.3), lambda: torch.native_dropout(x, 0.3, True)[0]):
        with drawing_from(Generators.seeded(1)):
            dropped = drop()
        kept = dropped != 0
        assert abs(float(kept.double().mean()) - 0.7) < 0.006
        torch.testing.assert_close(dropped[kept], torch.full_like(dropped[kept], 1 / 0.7))
        (gradient,) = torch.autograd.grad(dropped.sum(), x)
        torch.testing.assert_close(gradient, dropped.detach())


def test_threads_do_not_see_each_others_generators():
    inside, drawn = Event(), Event()

    def redirected():
        with drawing_from(Generators.seeded(1)):
            inside.set()
            drawn.wait(10)
            return torch.rand(5)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(redirected)
        inside.wait(10)
        torch.manual_seed(3)
        plain = torch.rand(5)
        drawn.set()
        expected = torch.rand(5, generator=torch.Generator().manual_seed(1))
        assert torch.equal(found.result(), expected)
    assert torch.equal(plain, torch.rand(5, generator=torch.Generator().manual_seed(3)))


def test_transformers_take_no_short_cut_past_their_dropout_and_no_process_wide_switch_is_touched():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True).eval()
    layer.dropout.training = True
    with torch.no_grad():
        assert torch.equal(layer(SEQUENCES), layer(SEQUENCES))  # the short cut leaves the dropout out
        with without_fast_path():
            assert torch.backends.mha.get_fastpath_enabled()
            assert not torch.equal(layer(SEQUENCES), layer(SEQUENCES))


def test_blocks_inside_of_each_other_each_have_their_own():
    outer, inner = Generators.seeded(1), Generators.seeded(2)
    with drawing_from(outer):
        first = torch.rand(3)
        with drawing_from(inner):
            between = torch.rand(3)
        with pytest.raises(KeyError), drawing_from(inner):
            raise KeyError
        second = torch.rand(3)
    expected = torch.Generator().manual_seed(1)
    assert torch.equal(first, torch.rand(3, generator=expected))
    assert torch.equal(between, torch.rand(3, generator=torch.Generator().manual_seed(2)))
    assert torch.equal(second, torch.rand(3, generator=expected))
    torch.manual_seed(9)
    plain = torch.rand(3)
    assert torch.equal(plain, torch.rand(3, generator=torch.Generator().manual_seed(9)))
