"""What comes out of the items' quick versions: the science, not only the files.

Of two seeds on a few hundred images only large effects are asked; those that need the full size are asked of the
results in the docs.
"""

import json
import math
import statistics
from pathlib import Path

import pytest
import torch

from dpbnn.data import load_images
from dpbnn.errors import DpbnnError
from dpbnn.experiments import FULL, ITEMS, QUICK, tuning
from dpbnn.experiments.page import FOLDER, page
from dpbnn.experiments.recipes import Recipe, best
from dpbnn.experiments.reproducing import reproduce
from dpbnn.experiments.settings import METHODS, NETWORKS, paper

pytestmark = pytest.mark.xdist_group("reproduce")  # one worker, which runs everything once

SPEC = {
    "DP-SGD, DP-BBP, DP-MC Dropout": (0.8645, 0.9544, 0.8344),
    "DP-SGLD": (0.8937, 0.9888, 0.8613),
    "the paper's regression": (4.1944, 4.8010, 4.2083),
    "little noise, rare records": (4.2351, 5.3292, 0.9764),
    "a common setting": (1.8282, 2.1014, 1.6177),
    "large batches": (2.5320, 2.7686, 2.4259),
}


@pytest.fixture(scope="module")
def images_are_there():
    try:
        load_images("mnist"), load_images("fashion-mnist")
    except DpbnnError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def results(tmp_path_factory, images_are_there):
    folder = tmp_path_factory.mktemp("quick")
    outcome = reproduce(list(ITEMS), QUICK, folder, show=False)
    assert outcome.written == tuple(ITEMS)
    assert outcome.left == 0
    again = reproduce(list(ITEMS), QUICK, folder, minutes=-1, show=False)
    assert again == outcome, "what is done is not done again"
    found = {name: json.loads((folder / FOLDER / f"{name}.json").read_text()) for name in ITEMS}
    return found | {"page": page(folder)}


def published(name):
    """The full size's results, as they stand in the docs."""
    return json.loads((Path(__file__).parents[2] / "docs" / FOLDER / f"{name}.json").read_text())


def of(rows, **wanted):
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def middle(values):
    return statistics.median(values)


def test_epsilon_comes_out_by_every_accountant(tmp_path):
    reproduce(["accountants"], QUICK, tmp_path, show=False)
    found = json.loads((tmp_path / FOLDER / "accountants.json").read_text())
    points = {what: curve[-1] for what, curve in found["curves"].items()}
    points |= {row["what"]: row["epsilon"] for row in found["rows"]}
    assert set(points) == set(SPEC)
    for what, expected in SPEC.items():
        assert [points[what][name] for name in ("pld", "rdp", "gdp")] == pytest.approx(expected, abs=2e-4), what
    for curve in found["curves"].values():
        for name in ("pld", "rdp", "gdp"):
            assert [point[name] for point in curve] == sorted(point[name] for point in curve)
        assert all(point["gdp"] < point["pld"] < point["rdp"] for point in curve)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_settings_keep_the_papers_budget(network, method):
    assert paper("mnist", network, method, "Gaussian", True, FULL).plan().epsilon() <= 0.894
    assert best("mnist", network, method, FULL).plan().epsilon() <= 0.894
    assert paper("mnist", network, method, "Gaussian", False, FULL).plan().epsilon() == float("inf")


@pytest.mark.slow
def test_privacy_costs_accuracy_and_better_settings_win_some_back(results):
    rows = results["accuracy"]["rows"]
    assert len(rows) == 12
    for method in ("sgld", "bbp"):
        row = of(rows, network="mlp", method=method, prior="Gaussian")
        assert middle(row["ours"]["private"]) < middle(row["ours"]["not_private"])
    for network in NETWORKS:
        row = of(rows, network=network, method="mc_dropout")
        assert middle(row["best"]["private"]) > middle(row["ours"]["private"]) + 0.2
    for row in rows:
        least = 0 if row["method"] == "mc_dropout" else 0.3
        assert min(row["ours"]["private"]) > least, "all but one method learn something"
    assert all(len(row["ours"]["private"]) == QUICK.seeds == len(row["seeds"]) for row in rows)
    assert {row["paper"]["private"] for row in rows if row["network"] == "cnn" and row["method"] == "bbp"} == {None}


@pytest.mark.slow
def test_calibration_errors_are_of_the_runs_of_the_accuracy_table(results):
    assert results["calibration"]["bins"] == 15
    for row in results["calibration"]["rows"]:
        for kind in ("private_", ""):
            ece, mce = row["ours"][f"{kind}ece"], row["ours"][f"{kind}mce"]
            assert all(0 <= one <= other <= 1 for one, other in zip(ece, mce, strict=True))
    told = of(results["calibration"]["rows"], network="mlp", method="bbp", prior="none")["paper"]
    assert told["private_ece"] > told["private_mce"], "the paper's, which cannot be"
    for panel in results["reliability"]["rows"]:
        row = of(results["calibration"]["rows"], network="mlp", method=panel["method"], prior=panel["prior"])
        assert panel["settings"] == row["settings"] or not panel["is_private"]


@pytest.mark.slow
def test_bins_hold_all_test_images_of_all_seeds(results):
    total = QUICK.seeds * QUICK.test_records
    for row in results["reliability"]["rows"]:
        assert sum(row["bins"]["count"]) == total
        assert all(
            (count == 0) == (own is None)
            for count, own in zip(row["bins"]["count"], row["bins"]["accuracy"], strict=True)
        )
    for row in results["confidence"]["rows"]:
        assert sum(row["counts"]["correct"]) + sum(row["counts"]["wrong"]) == total
    assert len(results["reliability"]["rows"]) == 11
    assert len(results["confidence"]["rows"]) == 6


@pytest.mark.slow
def test_the_easy_digit_is_easy_and_the_hard_one_hard(results):
    found = results["posterior-of-a-digit"]
    labels = load_images("mnist").y_test
    assert [int(labels[found["images"][digit]]) for digit in ("easy", "hard")] == [2, 3]
    for row in found["rows"]:
        easy, hard = (torch.tensor(row["draws"][digit]) for digit in ("easy", "hard"))
        assert easy.shape == hard.shape == (QUICK.draws, 10)
        torch.testing.assert_close(easy.sum(dim=1), torch.ones(len(easy)), rtol=0, atol=1e-3)
        if not (row["method"] == "mc_dropout" and row["is_private"]):  # which has learned nothing
            assert easy[:, 2].mean() > hard[:, 3].mean()


@pytest.mark.slow
def test_doubt_tells_garments_from_digits(results):
    for row in results["out-of-distribution"]["rows"]:
        for scores in row["ours"].values():
            assert all(0 <= value <= 1 for values in scores.values() for value in values)
            if row["method"] == "sgd":
                assert set(scores["mutual_information"]) == {0.5}, "a point estimate has none"
        if row["method"] != "sgd" and row["network"] == "mlp":
            assert middle(row["ours"]["best"]["mutual_information"]) > 0.55


@pytest.mark.slow
def test_samplers_of_the_family_are_at_temperature_one_half(results):
    rows = results["family"]["rows"]
    for row in rows:
        assert row["epsilon"] == sorted(row["epsilon"])
        assert len(row["epsilon"]) == len(row["steps"]) == len(row["ours"][0]) == QUICK.epochs
        if row["family"] == "DP-SGLD":
            assert row["temperature"] == pytest.approx(0.5, rel=1e-6)
    assert len({row["temperature"] for row in rows if row["family"] == "DP-SGD"}) > 2


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


@pytest.mark.slow
def test_private_methods_learn_along_the_way(results):
    for row in results["accuracy-by-epoch"]["rows"]:
        assert row["epoch"] == sorted(row["epoch"])
        assert row["epoch"][-1] == pytest.approx(QUICK.epochs, rel=0.1)
        if row["method"] != "mc_dropout":
            assert all(run[-1] > run[0] + 0.2 for run in row["ours"])


@pytest.mark.slow
def test_the_papers_noise_drowns_what_better_settings_bring_near_the_oracle(results):
    found = results["regression"]
    oracle = middle(found["oracle"])
    rows = {row["method"]: row for row in found["rows"]}
    assert len(found["oracle"]) == QUICK.regression_seeds
    assert rows["sgld"]["as_printed"]["epsilon"]["pld"] == pytest.approx(308.36, abs=0.01)
    assert rows["sgld"]["as_printed"]["settings"]["noise_multiplier"] == pytest.approx(0.6325, abs=1e-4)
    for row in rows.values():
        assert row["private"]["settings"]["noise_multiplier"] == pytest.approx(10)
        for way in ("private", "best"):
            assert row[way]["epsilon"]["pld"] == pytest.approx(4.1944, abs=2e-4)
        assert row["best"]["oracle"] == found["oracle"]
        assert 0.8 * oracle < middle(row["best"]["ours"]) < 2 * oracle
    assert middle(rows["bbp"]["private"]["ours"]) > 3 * oracle, "noise of the paper's setting drowns everything"


def test_over_twenty_seeds_nobody_predicts_better_than_the_oracle():
    found = published("regression")
    oracle = middle(found["oracle"])
    assert len(found["oracle"]) == FULL.regression_seeds
    for row in found["rows"]:
        assert oracle < middle(row["best"]["ours"]) < middle(row["private"]["ours"])
        if row["method"] == "sgld":
            assert middle(row["best"]["ours"]) < 1.12 * oracle


@pytest.mark.slow
def test_samples_take_more_room_than_a_mean_field_and_that_more_than_a_point(results):
    rows = {row["method"]: row["private"] for row in results["comparison"]["rows"]}
    room = {method: row["release_bytes"] / (4 * row["weights"]) for method, row in rows.items()}
    samples = min(100, paper("mnist", "mlp", "sgld", "Gaussian", True, QUICK).steps // 2)
    assert room["sgld"] == pytest.approx(samples, rel=0.05)
    assert [room["bbp"], room["bbp, joint form"]] == pytest.approx([2, 2], rel=0.05)
    assert room["sgd"] == pytest.approx(1, rel=0.05)
    assert all(row["seconds_per_epoch"] > 0 and row["training_bytes"] is None for row in rows.values())
    own = of(results["accuracy"]["rows"], network="mlp", method="sgld", prior="Gaussian")
    assert own["ours"]["seconds_per_epoch"] == rows["sgld"]["seconds_per_epoch"], "one job for both"


def slope_of(rows, activation, schedule):
    """Of the smallest gradient along the number of steps, both as logarithms, from the fewest to the most."""
    own = [row for row in rows if row["activation"] == activation and row["schedule"].startswith(schedule)]
    first, last = own[0], own[-1]
    return math.log(last["smallest_mean"] / first["smallest_mean"]) / math.log(last["steps"] / first["steps"])


@pytest.mark.slow
def test_gradients_fall_for_the_optimizer_and_not_for_the_sampler(results):
    rows = results["convergence"]["rows"]
    assert slope_of(rows, "relu", "DP-SGLD") > -0.1 > slope_of(rows, "relu", "DP-SGD,")
    assert slope_of(rows, "tanh", "DP-SGD,") < -0.1
    for row in rows:
        mean_of_smallest = sum(row["ours"]) / len(row["ours"])  # of figures with six decimals
        assert row["smallest_mean"] >= mean_of_smallest - 2e-6, "the expectation comes before the smallest"


def test_over_ten_thousand_steps_the_samplers_gradients_fall_much_more_slowly_with_tanh_too():
    rows = published("convergence")["rows"]
    for activation in ("relu", "tanh"):
        assert slope_of(rows, activation, "DP-SGLD") > slope_of(rows, activation, "DP-SGD,") + 0.1


@pytest.mark.slow
def test_the_best_candidate_has_the_least_negative_log_likelihood(results):
    found = results["tuning"]
    assert found["trained_on"] + found["tried_on"] == QUICK.records
    for method in METHODS:
        own = [row for row in found["rows"] if row["recipe"]["method"] == method]
        assert len(own) == QUICK.grid
        assert all(row["epsilon"] <= 0.894 for row in own)
        least = min(own, key=lambda row: sum(row["negative_log_likelihood"]))
        assert tuning.winner(found, "mlp", method) == Recipe(**least["recipe"])


@pytest.mark.slow
def test_the_page_has_a_section_for_every_item(results):
    for item in ITEMS.values():
        assert f"\n## {item.title}\n" in results["page"]
        assert f"({FOLDER}/{item.name}.json)" in results["page"]
    assert results["page"].count("A quick version") == len(ITEMS)
