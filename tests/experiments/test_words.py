"""Figures become words."""

import math

from dpbnn.experiments.words import epsilon_text, markdown, number, rounded_up, spread


def test_figures_become_words():
    assert spread([0.3, 0.1, 0.2]) == "0.200 (0.100 to 0.300)"
    assert spread([0.3, None, 0.1, 0.2]) == "0.200 (0.100 to 0.300; 1 of 4 diverged)"
    assert spread([0.3, None]) == "0.300, 1 of 2 diverged"
    assert spread([None, None]) == "2 of 2 diverged"
    assert spread([]) == number(None) == "-"
    assert number(3.7e61) == "4e+61"
    assert [rounded_up(0.89370151), rounded_up(0.8937)] == [0.8938, 0.8937]
    assert [epsilon_text(0.3125, 3), epsilon_text(None)] == ["0.313", "-"]
    assert number(math.pi, 2) == "3.14"
    assert (
        markdown("""
        one
        two
    """)
        == "one two"
    )
