"""Batch size and learning rate: what they do to privacy."""

import pytest


@pytest.mark.slow
def test_larger_batches_make_only_the_sampler_more_private(results):
    def epsilons(factor, family):
        rows = [row for row in results["factors"]["rows"] if (row["factor"], row["family"]) == (factor, family)]
        assert [row["value"] for row in rows] == sorted(row["value"] for row in rows)
        return [row["epsilon"] for row in rows]

    assert epsilons("batch_size", "DP-SGD")[0] < epsilons("batch_size", "DP-SGD")[-1]
    assert epsilons("batch_size", "DP-SGLD")[0] > epsilons("batch_size", "DP-SGLD")[-1]
    assert len(set(epsilons("rate", "DP-SGD"))) == 1
    assert epsilons("rate", "DP-SGLD")[0] < epsilons("rate", "DP-SGLD")[-1]
