"""A prediction: read in chunks, in parts or at once, from a seed, in a precision, it is the same average over draws."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import dpbnn
from dpbnn.clipping.objective import Objective
from dpbnn.errors import DpbnnError
from dpbnn.models.likelihoods import Categorical, HomoscedasticGaussian
from dpbnn.models.networks import MLP
from dpbnn.prediction.predict import Predictor, predict
from tests.prediction.networks import Draws


def test_the_model_is_left_as_it_was_also_after_an_error():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    model[1].eval()
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    posterior = Draws.around(model, 10)
    for keeps_dropout in (False, True):
        posterior.keeps_dropout = keeps_dropout
        predict(Objective(model, Categorical()), posterior, torch.randn(5, 4), 10, seed=0)
        with pytest.raises(DpbnnError, match=r"X of shape \[5, 3\] and type torch.float32 does not fit the model"):
            predict(Objective(model, Categorical()), posterior, torch.randn(5, 3), 10, seed=0)
    assert all(torch.equal(values, state[name]) for name, values in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes


def test_more_draws_than_the_posterior_holds_are_all_of_them_and_it_says_so():
    model = MLP(4, [6], 3)
    prediction = predict(Objective(model, Categorical()), Draws.around(model, 7), torch.ones(2, 4), 100, seed=0)
    assert (prediction.num_draws, prediction.requested_draws) == (7, 100)
    real = predict(Objective(model, HomoscedasticGaussian(1.0)), Draws.around(model, 7), torch.ones(2, 4), 100, seed=0)
    assert (real.num_draws, real.requested_draws) == (7, 100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_draws": 0}, "num_draws must be >= 1, got 0"),
        ({"num_draws": -3}, "num_draws must be >= 1, got -3"),
        ({"num_draws": 2.5}, "num_draws must be a whole number, got 2.5"),
        ({"memory_limit": 0}, "memory_limit must be >= 1, got 0"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
        ({"seed": 2**64}, r"seed must be < 2\*\*63"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(settings, message):
    class Untouchable:
        keeps_dropout = False

        def draw(self, num_draws, seed):
            pytest.fail("ran")

    with pytest.raises(DpbnnError, match=message):
        predict(
            Objective(MLP(4, [], 3), Categorical()), Untouchable(), [[0.0]], **{"num_draws": 1, "seed": 0, **settings}
        )


class OnDisk:
    """Stands for data that is too large to read, with a shape and slices alone: it counts what is asked for."""

    def __init__(self, values):
        self.values, self.shape, self.slices = values, values.shape, []

    def __getitem__(self, rows):
        self.slices.append((rows.start, rows.stop))
        return self.values[rows]


def release():
    model = MLP(4, [6], 3)
    return dpbnn.Release(Draws.around(model, 20), None, model, Categorical())


def test_large_inputs_are_read_once_and_some_rows_at_a_time(tmp_path):
    values = np.random.default_rng(0).normal(size=(1000, 4))
    np.save(tmp_path / "x.npy", values)
    mapped, trained = np.load(tmp_path / "x.npy", mmap_mode="r"), release()
    whole = trained.predict(torch.tensor(values), seed=0)
    assert torch.allclose(trained.predict(mapped, seed=0, memory_limit=2**14).probabilities, whole.probabilities)
    watched = OnDisk(values)
    streamed = trained.predict(watched, seed=0, memory_limit=2**14)
    assert torch.allclose(streamed.probabilities, whole.probabilities, atol=1e-6)
    looked, *read = watched.slices
    assert looked == (0, 1)
    assert [start for start, _ in read] == [0, *(end for _, end in read[:-1])]
    assert max(end - start for start, end in read) < 200
    assert read[-1][1] == 1000
    with pytest.raises(DpbnnError, match=r"X of shape \[1000, 3\] and type OnDisk does not fit the model"):
        trained.predict(OnDisk(values[:, :3]))


@pytest.mark.parametrize(
    "run",
    [
        lambda trained, X, limit: trained.predict(X, memory_limit=limit),
        lambda trained, X, limit: list(trained.predict_in_parts(X, rows=10, memory_limit=limit)),
    ],
    ids=["at once", "in parts"],
)
def test_a_memory_limit_below_one_row_of_one_draw_gets_one_warning_at_the_line_that_called(run, recwarn):
    trained, X = release(), torch.randn(50, 4)
    weights = sum(p.nbytes for p in trained.model.parameters())
    for limit in (None, 2 * weights):
        run(trained, X, limit)
    assert not recwarn.list
    run(trained, X, weights)
    (found,) = recwarn.list
    assert issubclass(found.category, dpbnn.DpbnnWarning)
    assert f"memory_limit is in bytes: {weights} hold less than one row of one draw" in str(found.message)
    assert found.filename == __file__


def test_prediction_in_parts_is_prediction():
    trained, X = release(), torch.randn(25, 4)
    whole = trained.predict(X, seed=1, keep_draws=True)
    parts = list(trained.predict_in_parts(X, rows=10, seed=1, keep_draws=True))
    assert [len(part.probabilities) for part in parts] == [10, 10, 5]
    assert torch.allclose(torch.cat([part.probabilities for part in parts]), whole.probabilities, atol=1e-6)
    assert torch.allclose(torch.cat([part.mutual_information for part in parts]), whole.mutual_information, atol=1e-6)
    assert torch.allclose(torch.cat([part.draws for part in parts], dim=1), whole.draws, atol=1e-6)
    fresh = [part.probabilities for part in trained.predict_in_parts(X[:1].expand(4, 4), rows=1)]
    assert torch.allclose(torch.cat(fresh), fresh[0].expand(4, 3), atol=1e-6)  # the same draws for all parts
    assert list(trained.predict_in_parts(X[:0], rows=10)) == []
    with pytest.raises(DpbnnError, match="rows must be >= 1, got 0"):
        trained.predict_in_parts(X, rows=0)
    with pytest.raises(DpbnnError, match="num_draws must be >= 1"):
        trained.predict_in_parts(X, rows=10, num_draws=0)


def test_inputs_come_as_lists_arrays_or_data_frames():
    class Frame:
        shape = (3, 4)

        def to_numpy(self):
            return np.ones((3, 4))

    trained = release()
    for X in ([[1.0] * 4] * 3, np.ones((3, 4), dtype=np.float32), Frame()):
        assert torch.allclose(
            trained.predict(X, seed=0).probabilities, trained.predict(torch.ones(3, 4), seed=0).probabilities
        )
    with pytest.raises(DpbnnError, match="one row per record"):
        trained.predict(torch.tensor(1.0))
    with pytest.raises(DpbnnError, match="X must hold numbers"):
        trained.predict(np.array([["a"] * 4]))
    assert trained.predict(torch.ones(0, 4)).probabilities.shape == (0, 3)


@pytest.mark.parametrize("draws", [20, 3], ids=["together", "one by one"])
@pytest.mark.parametrize(("precision", "off"), [("float32", 1e-6), ("tf32", 1e-2), ("bfloat16", 0.1)])
def test_a_precision_governs_the_products_and_results_are_in_float32(precision, off, draws):
    model, x = MLP(40, [30], 3), torch.randn(50, 40)
    posterior, objective = Draws.around(model, draws), Objective(model, Categorical())
    exact = predict(objective, posterior, x, draws, seed=0, keep_draws=True)
    found = predict(objective, posterior, x, draws, seed=0, keep_draws=True, precision=precision)
    assert found.probabilities.dtype == found.expected_entropy.dtype == found.draws.dtype == torch.float32
    assert torch.allclose(found.draws, exact.draws, atol=off)
    assert torch.allclose(found.draws.sum(dim=2), torch.ones(()), atol=1e-6)
    assert (precision == "bfloat16") == (not torch.allclose(found.draws, exact.draws, atol=1e-4))


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_precision_is_set_for_the_prediction_alone(precision):
    model = MLP(4, [6], 3)
    during, before = [], (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    model.register_forward_pre_hook(
        lambda *_: during.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
    )
    predict(Objective(model, Categorical()), Draws.around(model, 3), torch.ones(2, 4), 3, seed=0, precision=precision)
    assert set(during) == {("highest" if precision == "float32" else "high", precision == "tf32")}
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
    assert not torch.is_autocast_enabled("cpu")


def test_a_user_s_own_autocast_does_not_reach_a_prediction_in_float32():
    model, x = MLP(40, [30], 3), torch.randn(50, 40)
    objective, posterior = Objective(model, Categorical()), Draws.around(model, 3)
    exact = predict(objective, posterior, x, 3, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        asked = predict(objective, posterior, x, 3, seed=0, precision="float32")
        left = predict(objective, posterior, x, 3, seed=0)
    assert torch.allclose(asked.probabilities, exact.probabilities, atol=1e-6)
    assert not torch.allclose(left.probabilities, exact.probabilities, atol=1e-5)


def test_real_outputs_in_half_precision_come_back_in_float32():
    model, x = MLP(4, [6], 2), torch.randn(7, 4)
    objective = Objective(model, HomoscedasticGaussian(0.5))
    found = predict(objective, Draws.around(model, 20), x, 20, seed=0, precision="bfloat16")
    assert found.means.dtype == found.variances.dtype == torch.float32
    exact = predict(objective, Draws.around(model, 20), x, 20, seed=0)
    assert found.means.shape == exact.means.shape


def test_an_unknown_precision_is_refused():
    model = MLP(4, [6], 3)
    with pytest.raises(DpbnnError, match="precision must be one of 'float32', 'tf32', 'bfloat16', got 'half'"):
        Predictor(Objective(model, Categorical()), Draws.around(model, 3), 3, precision="half")
