"""Rules and findings: order, what is kept in settings and read back, and what is refused."""

import pytest

import dpbnn
from dpbnn.lint import RULES, Finding, Subject, finding, inspect, noted, refuse, with_findings
from tests.lint.test_lint import PLAN, setup, with_buffer

MANY = setup(unsafe_seed=0, model=with_buffer(), accountant="gdp")


def test_holes_come_first_whatever_the_order_in_which_rules_were_entered(monkeypatch):
    assert [found.severity for found in inspect(MANY)] == ["hole", "weak", "care"]
    names = [found.name for found in inspect(MANY)]
    monkeypatch.setattr(finding, "RULES", dict(reversed(RULES.items())))
    assert [found.name for found in inspect(MANY)] == names


def test_findings_are_read_back_from_settings_word_for_word():
    findings = inspect(MANY)
    settings = with_findings({"rate": 0.1}, findings)
    assert settings["rate"] == 0.1
    assert noted(settings["findings"]) == findings
    assert with_findings({"rate": 0.1}, []) == {"rate": 0.1}


def test_the_words_of_an_earlier_finding_stay_and_rules_that_are_gone_are_left_out():
    (found,) = inspect(setup(accountant="gdp"))
    earlier = {"findings": {"gdp-only": "said before", "gone": "of a rule of old"}}
    assert with_findings(earlier, [found])["findings"] == earlier["findings"]
    assert [(own.name, own.found) for own in noted(earlier["findings"])] == [("gdp-only", "said before")]


def test_only_the_rule_that_is_named_refuses_and_its_error_says_why_and_the_cure():
    findings = inspect(MANY)
    refuse(findings, "records-mix")
    with pytest.raises(dpbnn.DpbnnError) as error:
        refuse(findings, "fixed-noise-seed")
    rule = RULES["fixed-noise-seed"]
    assert str(error.value) == f"sampling and noise come from a seed. {rule.why} {rule.cure}"


def test_a_rule_is_entered_under_the_name_of_its_function(monkeypatch):
    monkeypatch.setattr(finding, "RULES", {})

    @finding.rule("weak", "Few steps learn little.", "Take more.")
    def _few_steps(subject):
        return "there are few steps" if subject.plan.steps < 100 else ""

    (found,) = inspect(Subject(PLAN))
    assert found == Finding("few-steps", "weak", "there are few steps", "Few steps learn little.", "Take more.")
    assert str(found) == "weak: few-steps: there are few steps. Few steps learn little. Take more."
