"""An easy and a hard digit, and what the draws say about them."""

import pytest
import torch

from dpbnn.data import load_images
from dpbnn.experiments import QUICK
from dpbnn.experiments.posterior_of_a_digit import DigitDraws, easy_and_hard
from dpbnn.experiments.settings import paper
from tests.experiments.stored import TINY


@pytest.mark.slow
def test_the_easy_digit_is_easy_and_the_hard_one_hard(results):
    stored = results["posterior-of-a-digit"]
    labels = load_images("mnist").y_test
    assert [int(labels[stored["images"][digit]]) for digit in ("easy", "hard")] == [2, 3]
    for row in stored["rows"]:
        easy, hard = (torch.tensor(row["draws"][digit]) for digit in ("easy", "hard"))
        assert easy.shape == hard.shape == (QUICK.draws, 10)
        torch.testing.assert_close(easy.sum(dim=1), torch.ones(len(easy)), rtol=0, atol=1e-3)
        if not (row["method"] == "mc_dropout" and row["is_private"]):  # which has learned nothing
            assert easy[:, 2].mean() > hard[:, 3].mean()


@pytest.mark.usefixtures("synthetic_images")
def test_every_draw_gives_both_digits_a_distribution():
    easy_and_hard.cache_clear()
    job = DigitDraws(paper("mnist", "mlp", "bbp", "Gaussian", True, TINY), 0, TINY)
    places = easy_and_hard(TINY)
    assert [int(job.data("cpu").y_test[place]) for place in places.values()] == [2, 3]
    (outcome,) = DigitDraws.run_all([job], "cpu")
    for digit in places:
        torch.testing.assert_close(torch.tensor(outcome[digit]).sum(dim=1), torch.ones(TINY.draws), rtol=0, atol=1e-4)
