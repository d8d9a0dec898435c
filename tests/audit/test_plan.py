"""`dpbnn audit`: near the claim where that is possible, silent on code that is right, loud where it is not."""

import json
import sys
from dataclasses import replace

import pytest
import torch

import dpbnn
from dpbnn.audit import audit_plan
from dpbnn.cli import main as cli
from dpbnn.training.steps import eager

PLAN = dpbnn.PrivacyPlan(dataset_size=100, batch_size=100, steps=4, clip_norm=1.5, noise_multiplier=1.3, delta=1e-5)


def run(capsys, *arguments):
    sys.argv = ["dpbnn", "audit", *map(str, arguments)]
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return stop.value.code, capsys.readouterr()


@pytest.mark.slow
def test_the_command_says_in_words_and_figures_what_it_found(capsys, tmp_path):
    plan = replace(PLAN, clipping="automatic", max_records_per_person=2, noise_multiplier=((2.6, 1), (3.0, 3)))
    release = dpbnn.fit(
        dpbnn.networks.MLP(2, [], 2),
        torch.zeros(100, 2),
        torch.zeros(100, dtype=torch.long),
        method=dpbnn.SGD(0.1),
        plan=plan,
        likelihood=dpbnn.Categorical(),
        progress=False,
    )
    release.save(tmp_path / "model")
    code, printed = run(capsys, tmp_path / "model", "--quick", "--json", "--plot", tmp_path / "audit.png")
    assert code == 0
    found = json.loads(printed.out)
    assert found["claimed_epsilon"] == plan.epsilon()
    assert 0.8 * found["claimed_epsilon"] < found["epsilon_at_least"] <= found["claimed_epsilon"] * 1.01
    assert found["alarms"] == []
    assert set(found["one_run"]) == {"sgd", "sgld", "bbp", "mc_dropout"}
    assert (tmp_path / "audit.png").stat().st_size > 10_000
    kept = json.loads((tmp_path / "model" / "audit.json").read_text())
    assert kept["claimed_epsilon"] == found["claimed_epsilon"]
    assert dpbnn.load(tmp_path / "model").guarantee.plan == plan
    settings = "the plan's own automatic clipping, 2 levels of noise and clip norm, and 2 rows per person"
    assert settings in kept["in_words"]
    for attack in found["mechanism"].values():
        assert (attack["clipping"], attack["levels"], attack["rows_per_person"]) == ("automatic", 2, 2)
    for attack in found["variations"].values():
        assert 0.8 * attack["claimed_epsilon"] < attack["epsilon"] <= attack["claimed_epsilon"] * 1.01
    seen = found["coverage"]["looked_at"]
    assert (seen["clipping"], seen["levels"], seen["rows_per_person"]) == (["automatic", "flat"], [1, 2], [1, 2, 3])
    assert seen["form"] == ["joint BBP", "ordinary"]
    assert max(seen["records"]) > 4096
    assert max(seen["weights"]) > 2**19
    assert f"Not looked at: {'; '.join(found['coverage']['not_looked_at'])}." in kept["in_words"]
    card = (tmp_path / "model" / "card.md").read_text()
    bound = (
        f"for one person with at most 2 records, epsilon at least {found['epsilon_at_least']:.4g} with 95 % confidence"
    )
    assert bound in card
    assert "Nothing speaks against the claim." in " ".join(card.split())
    assert "Not looked at: your records and your network" in " ".join(card.split())


def test_bad_input_is_one_line_before_any_attack(capsys, tmp_path):
    for wrong, message in (
        (["none"], "none is no release"),
        (["--confidence", 2], "--confidence must be"),
        (["--plot", tmp_path / "no" / "a.png"], "--plot must be a new file"),
        (["--plot", tmp_path / "a.txt"], "--plot must be a new file"),
    ):
        code, printed = run(capsys, *wrong)
        assert code == 2
        assert message in printed.err


@pytest.mark.slow
def test_a_claim_that_is_false_is_called_so(monkeypatch):
    original = eager.add_noise
    monkeypatch.setattr(eager, "add_noise", lambda sums, noise, *more: original(sums, noise / 2, *more))
    found = audit_plan(PLAN, quick=True)
    assert any("less noise" in alarm for alarm in found.alarms)
    assert found.epsilon > 1.5 * found.claimed_epsilon
    assert "THE CODE BREAKS THE CLAIM" in str(found)
