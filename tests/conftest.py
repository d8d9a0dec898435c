import os

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile("dpbnn", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dpbnn")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is made


@pytest.fixture(autouse=True)
def _seeded():
    """Tests draw models and data from torch's global generator; each starts it afresh."""
    torch.manual_seed(0)
