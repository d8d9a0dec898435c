"""The DP card: everything that gives a claim its meaning, on one page, and what attacks showed of it."""

from dataclasses import replace

import pytest
import torch

import dpbnn
from dpbnn.privacy.guarantee import PrivacyGuarantee
from dpbnn.release.card import CARD, card

PLAN = dpbnn.PrivacyPlan(dataset_size=1000, batch_size=100, steps=50, clip_norm=1.0, noise_multiplier=2.0, delta=1e-5)


def fitted(plan=PLAN, **how):
    x, y = torch.zeros(50, 2), torch.zeros(50, dtype=torch.long)
    model, own = dpbnn.networks.MLP(2, [], 2), {"method": dpbnn.SGD(0.1), "likelihood": dpbnn.Categorical()}
    return dpbnn.fit(model, x, y, plan=plan, progress=False, **own, **how)


def test_a_card_has_the_claim_its_figures_and_all_assumptions(tmp_path):
    release = fitted()
    release.save(tmp_path / "model")
    text = (tmp_path / "model" / CARD).read_text()
    flat, guarantee = " ".join(text.split()), release.guarantee
    assert f"| epsilon, delta | {guarantee.epsilon:g}, 1e-05 |" in text
    assert all(f"{name.upper()} {own:g}" in text for name, own in guarantee.epsilon_by_accountant.items())
    assert f"| epsilon if replaced by another | {guarantee.epsilon_replace_one:g} |" in text
    everybody = float(text.split("amplification by sampling | ")[1].split(" |")[0])
    assert everybody == pytest.approx(replace(PLAN, batch_size=1000).epsilon(), abs=1e-4)
    assert everybody > guarantee.epsilon
    assert all(f"- {own}" in flat for own in guarantee.assumptions)
    assert "none yet" in text
    assert "Findings" not in text


def test_findings_of_lint_rules_are_on_the_card():
    text = " ".join(card_of(fitted(replace(PLAN, delta=0.01))).split())
    assert "- weak: delta-not-small: delta is 0.01 for 1000 records." in text


def test_the_card_lists_what_was_spent():
    spent = fitted(replace(PLAN, pure_epsilons=(0.01, 0.02, 0.02), max_records_per_person=2))
    lines = card_of(spent).split("## Ledger")[1].split("##")[0].splitlines()
    assert "| training | Gaussian noise on a clipped sum | 2 | 50 | 2 |" in lines
    assert "| given by the caller | bought elsewhere | 0.01 | 1 | 2 |" in lines
    assert "| given by the caller | bought elsewhere | 0.02 | 2 | 2 |" in lines
    many = [
        {"purpose": f"column {place}", "mechanism": "quantile", "level": 0.1, "count": 1, "rows_per_person": 1}
        for place in range(9)
    ]
    text = card(spent.guarantee, {"ledger": many})
    assert "| column 0, column 1, column 2, column 3, column 4, column 5 and 3 more like it, each | quantile |" in text
    assert "## Ledger" not in card(spent.guarantee, {}), "as in releases of before"


def card_of(release, audit=None):
    return card(release.guarantee, release.settings, audit)


def test_a_release_without_guarantee_has_a_card_that_says_so_first():
    release = fitted(unsafe_seed=0)
    text = card_of(release)
    assert text.startswith("# DP card\n\nThere is no privacy guarantee")
    assert "| guarantee | none |" in text
    assert "epsilon, delta" not in text
    plain = dpbnn.PrivacyPlan.without_privacy(dataset_size=1000, batch_size=100, steps=5)
    assert "| guarantee | none |" in card(PrivacyGuarantee.for_plan(plain), {})


def test_a_claim_that_the_code_breaks_says_so_on_the_card():
    audit = {"confidence": 0.95, "alarms": ["noise"], "epsilon_at_least": 9.0, "claimed_epsilon": 1.0}
    audit |= {"date": "today", "in_words": "Bad."}
    assert "THE CODE BREAKS THE CLAIM" in card_of(fitted(), audit)
