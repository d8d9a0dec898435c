"""Checks of noise: their p-values are those of noise that is right, and tiny for noise that is not."""

import numpy as np
import pytest

from dpbnn.audit.noise import checks_of_noise

RELEASES, NUMBERS, COMPLETE, BARE = 40, 60, 5000, 4000
TENSORS = np.repeat(np.arange(3), NUMBERS // 3)
REPETITIONS = 150


def p_values(generator, change=lambda residuals: residuals):
    residuals = [change(generator.standard_normal((RELEASES, NUMBERS))) for _ in range(2)]
    complete = [generator.standard_normal(COMPLETE) for _ in range(2)]
    bare = generator.standard_normal(BARE).astype(np.float32)
    return {check.name: check.p_value for check in checks_of_noise(residuals, TENSORS, complete, bare)}


@pytest.mark.guarantees("Code that is right fails a check at most once in ``1 / ALARM``.")
def test_p_values_of_right_noise_are_small_no_more_often_than_they_say():
    generator = np.random.default_rng(0)
    found = [p_values(generator) for _ in range(REPETITIONS)]
    for name in found[0]:
        values = np.array([each[name] for each in found])
        assert (values < 0.1).sum() <= 36, f"{name}: 15 are allowed on average; more than 36 once in 5 million"
        assert (values < 0.01).sum() <= 11, f"{name}: 1.5 are allowed on average; more than 11 once in 10 million"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda noise: noise * np.where(TENSORS == 1, 0.7, 1.0), "no tensor has less noise than is claimed"),
        (lambda noise: noise + 0.3, "a release is the clipped sum with noise of mean zero"),
        (lambda noise: np.repeat(noise[::2], 2, axis=0), "each step of each run has noise of its own"),
        (lambda noise: np.repeat(noise[:, ::2], 2, axis=1), "each number has noise of its own"),
        (lambda noise: np.sign(noise) * np.sqrt(2 / np.pi), "noise is Gaussian"),
    ],
)
def test_wrong_noise_fails_the_check_that_is_about_it(change, name):
    assert p_values(np.random.default_rng(0), change)[name] < 1e-8
