"""The paper's settings, and the best ones, keep its budget."""

import pytest

from dpbnn.experiments import FULL
from dpbnn.experiments.recipes import best
from dpbnn.experiments.settings import METHODS, NETWORKS, paper


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_settings_keep_the_papers_budget(network, method):
    assert paper("mnist", network, method, "Gaussian", True, FULL).plan().epsilon() <= 0.894
    assert best("mnist", network, method, FULL).plan().epsilon() <= 0.894
    assert paper("mnist", network, method, "Gaussian", False, FULL).plan().epsilon() == float("inf")
