"""Chance that repeats itself: a test that fails here fails for everybody, and again.

`pytest --fresh` draws from the operating system, as users do. Limits of statistical tests must hold for it too.
"""

import os
import random
import secrets

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is made


def pytest_addoption(parser):
    parser.addoption("--fresh", action="store_true", help="randomness from the operating system, another every time")


def pytest_configure(config):
    settings.register_profile(
        "dpbnn",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        derandomize=not config.getoption("fresh"),
    )
    settings.load_profile("dpbnn")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Every key, seed and coin that dpbnn takes from the operating system is a function of the test's name."""
    with pytest.MonkeyPatch.context() as patch:
        if not item.config.getoption("fresh"):
            chance, unseeded = random.Random(item.nodeid), np.random.default_rng
            patch.setattr(os, "urandom", chance.randbytes)
            patch.setattr(secrets, "randbits", chance.getrandbits)
            patch.setattr(
                np.random,
                "default_rng",
                lambda seed=None: unseeded(chance.getrandbits(128) if seed is None else seed),
            )
        return (yield)


@pytest.fixture(autouse=True)
def _seeded():
    """Tests draw models and data from torch's global generator; each starts it afresh."""
    torch.manual_seed(0)
