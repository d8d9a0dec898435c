"""`dpbnn demo`."""

from dpbnn.cli.demo import EPSILON, as_text, run_demo


def test_the_demo_learns_under_its_budget():
    result = run_demo()
    assert result["accuracy"] > 0.85
    assert result["guarantee"].epsilon <= EPSILON
    assert result["guarantee"].voided_by == ()
    assert "differentially private with epsilon = 2" in as_text(result).replace("\n", " ")
