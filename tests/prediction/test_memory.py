"""How much of a prediction runs at a time: within the bound, measured once, with the same result."""

import pytest
import torch
from torch import nn

from dpbnn.clipping.objective import Objective
from dpbnn.models.likelihoods import Categorical
from dpbnn.models.networks import MLP
from dpbnn.prediction.ensemble import Ensemble
from dpbnn.prediction.memory import MIN_STACK, Measurements, PeakMemory, chunks, measured
from dpbnn.prediction.predict import predict
from tests.prediction.networks import MODELS, Draws


@pytest.mark.filterwarnings("ignore:memory_limit is in bytes")
@pytest.mark.parametrize("limit", [1, 2**12, 2**16, 2**20])
@pytest.mark.parametrize("name", ["mlp", pytest.param("cnn", marks=pytest.mark.slow), "lstm"])
def test_memory_stays_within_the_limit_and_the_numbers_the_same(name, limit):
    make, shape, _ = MODELS[name]
    model, x = make().double(), torch.randn(60, *shape).double()
    objective, posterior = Objective(model, Categorical()), Draws.around(model, 12)
    whole = predict(objective, posterior, x, 12, seed=0, keep_draws=True)
    parted = predict(objective, posterior, x, 12, seed=0, keep_draws=True, memory_limit=limit)
    assert torch.allclose(parted.probabilities, whole.probabilities, atol=1e-11)
    assert torch.allclose(parted.expected_entropy, whole.expected_entropy, atol=1e-11)
    assert torch.allclose(parted.draws, whole.draws, atol=1e-11)

    known = [x, *(values for weights in posterior.weights for values in weights.values())]
    one_record = peak(known, lambda: predict(objective, posterior, x[:1], 1, seed=0))
    used = peak(known, lambda: predict(objective, posterior, x, 12, seed=0, memory_limit=limit))
    results = whole.probabilities.nbytes + whole.expected_entropy.nbytes
    assert used <= max(limit, one_record) + 2 * results  # in parts, and joined


def peak(known, run):
    with PeakMemory(known) as memory:
        run()
    return memory.peak


def chosen(model, x, num_draws, limit, keeps_dropout=False):
    posterior = Draws([{n: p.detach() for n, p in model.named_parameters()}] * num_draws, keeps_dropout)
    ensemble = Ensemble(Objective(model, Categorical()), posterior, num_draws, seed=0)
    with torch.no_grad(), ensemble.mode():
        needs = measured(ensemble, x[:1], lambda predicted: None)
        return chunks(ensemble, needs, x[:1], len(x), limit)


def test_rows_and_draws_are_chosen_by_what_they_take():
    small, wide = MLP(4, [6], 3), MLP(784, [1200, 1200], 10)
    assert chosen(small, torch.ones(5, 4), 50, 2**28).draws == 50
    assert chosen(small, torch.ones(5, 4), 50, 2**28).rows == 5
    assert chosen(small, torch.ones(5, 4), MIN_STACK - 1, 2**28).draws == 1  # too few to gain anything
    assert chosen(wide, torch.ones(1, 784), 50, 2**28).draws == 1  # ten megabytes of weights: not worth a stack
    of_wide = chosen(wide, torch.ones(10_000, 784), 50, 2**28)
    assert 200 < of_wide.rows < 2000
    assert of_wide.rows < of_wide.part < 10_000 * 5
    for limit in (2**14, 2**16, 2**18):
        found = chosen(small, torch.ones(10_000, 4), 50, limit)
        activations = (4 + 6) * 4  # the widest pair of neighbours
        assert found.rows * activations <= limit // 2
        assert found.draws == 1
        assert found.part * (4 + 3) * 4 <= limit
    masked = chosen(MLP(4, [6], 3, dropout=0.5), torch.ones(5, 4), 50, 2**28, keeps_dropout=True)
    assert (masked.rows, masked.draws) == (5, 50)


def test_what_records_take_is_measured_once_for_each_kind_of_them():
    model, passes = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), []
    model.register_forward_hook(lambda *given: passes.append(len(given[1][0])))
    objective, posterior = Objective(model, Categorical()), Draws.around(model, 1)

    measurements = Measurements()

    def passes_for(x):
        passes.clear()
        predict(objective, posterior, x, 1, seed=0, measurements=measurements)
        return list(passes)

    assert passes_for(torch.ones(5, 4)) == [1, 3, 5]
    assert passes_for(torch.ones(7, 4)) == [7]
    assert passes_for(torch.ones(7, 2, 2)) == [1, 3, 7]
    assert passes_for(torch.ones(7, 2, 2)) == [7]
