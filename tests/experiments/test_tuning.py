"""How the best settings were found: the candidates, and the winner among them."""

import pytest
import torch

from dpbnn.experiments import FULL, QUICK, tuning
from dpbnn.experiments.settings import BEST, METHODS, NETWORKS, Recipe
from dpbnn.experiments.tuning import candidates
from tests.experiments.stored import TINY


def test_the_best_recipes_are_among_those_that_were_tried():
    for network in NETWORKS:
        for method in METHODS:
            assert BEST[network, method] in candidates(network, method, FULL)


@pytest.mark.slow
def test_the_best_candidate_has_the_least_negative_log_likelihood(results):
    stored = results["tuning"]
    assert stored["trained_on"] + stored["tried_on"] == QUICK.records
    for method in METHODS:
        tried = [row for row in stored["rows"] if row["recipe"]["method"] == method]
        assert len(tried) == QUICK.grid
        assert all(row["epsilon"] <= 0.894 for row in tried)
        least = min(tried, key=lambda row: sum(row["negative_log_likelihood"]))
        assert tuning.winner(stored, "mlp", method) == Recipe(**least["recipe"])


@pytest.mark.usefixtures("synthetic_images")
def test_candidates_are_tried_on_training_images_that_they_have_not_seen():
    size = TINY
    recipe = BEST["mlp", "bbp"]
    trial = tuning.HeldOutTrial(recipe.at("mnist", size, 400), 0, size)
    data, every = trial.data("cpu"), tuning.HeldOutTrial(recipe.at("mnist", size), 0, size).data("cpu")
    assert (len(data.x), len(data.x_test)) == (400, 112)
    assert torch.equal(torch.cat([data.x, data.x_test]), every.x)
