"""The covering array covers what is allowed, never has what is not, and is the same every time."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.together.combinations.covering import Rule, Space, cover, targets
from tests.together.combinations.factors import (
    BOUNDARY,
    COSTLY,
    all_targets,
    described,
    factors,
    fast_cells,
    rules,
    slow_cells,
    space,
)

SMALL = {"a": ["0", "1", "2"], "b": ["0", "1"], "c": ["0", "1", "2"], "d": ["0", "1"]}
AWAY = Rule("a 2 needs b 1 and a small c", ("a", ["2"]), {"b": ["1"], "c": ["0", "1"]})
CHAIN = [
    Rule("", ("a", ["1"]), {"b": ["1"]}),
    Rule("", ("b", ["1"]), {"c": ["2"]}),
    Rule("", ("c", ["2"]), {"d": ["1"]}),
]
IMPOSSIBLE = [Rule("", ("a", ["1"]), {"b": ["1"]}), Rule("", ("b", ["1"]), {"a": ["0"]})]


def every_cell(own):
    """By trying all."""
    cells = (dict(zip(own.factors, values, strict=True)) for values in product(*own.factors.values()))
    return [cell for cell in cells if all(rule.is_kept(cell) for rule in own.rules)]


def combined(cells, strength, names):
    return {
        several
        for cell in cells
        for several in combinations([(name, cell[name]) for name in cell if name in names], strength)
    }


def spelled(own, wanted):
    return {tuple(own.values[number] for number in target) for target in wanted}


@pytest.mark.parametrize("own_rules", [[], [AWAY], CHAIN, IMPOSSIBLE, [AWAY, *CHAIN]], ids=str)
@pytest.mark.parametrize("strength", [1, 2, 3])
def test_what_is_allowed_is_what_some_cell_has(own_rules, strength):
    own = Space(SMALL, own_rules)
    assert spelled(own, targets(own, strength, SMALL)) == combined(every_cell(own), strength, SMALL)


@pytest.mark.parametrize("own_rules", [[], [AWAY], CHAIN, IMPOSSIBLE, [AWAY, *CHAIN]], ids=str)
def test_all_pairs_and_some_triples_are_covered_by_allowed_cells_alone(own_rules):
    own = Space(SMALL, own_rules)
    cells = cover(own, [*targets(own, 3, "abc"), *targets(own, 2, SMALL)])
    possible = every_cell(own)
    assert all(cell in possible for cell in cells)
    assert combined(cells, 2, SMALL) == combined(possible, 2, SMALL)
    assert combined(cells, 3, "abc") == combined(possible, 3, "abc")
    assert len(cells) <= len(possible)
    assert own_rules or len(cells) < len(possible) * 2 / 3


values = st.lists(st.sampled_from("012"), min_size=1, max_size=2, unique=True)
random_rules = st.builds(
    lambda when, one, needs, other: Rule("", (when, one), {needs: other}),
    st.sampled_from("ac"), values, st.sampled_from("bd"), st.lists(st.sampled_from("01"), max_size=1),
)  # fmt: skip


@settings(max_examples=50)
@given(st.lists(random_rules, max_size=4))
def test_whatever_the_rules_are(own_rules):
    own = Space(SMALL, own_rules)
    cells = cover(own, targets(own, 2, SMALL))
    assert all(rule.is_kept(cell) for rule in own_rules for cell in cells)
    assert combined(cells, 2, SMALL) == combined(every_cell(own), 2, SMALL)


def test_cells_that_are_known_already_need_not_be_made_again():
    own = Space(SMALL)
    wanted = targets(own, 2, SMALL)
    cells = cover(own, wanted)
    assert cover(own, wanted, known=cells) == []
    further = cover(own, wanted, known=cells[:3])
    assert combined([*cells[:3], *further], 2, SMALL) == combined(every_cell(own), 2, SMALL)


def test_a_rule_about_a_value_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="which a does not have"):
        Space(SMALL, [Rule("a typing error", ("a", ["3"]), {"b": ["0"]})])


def test_the_cells_cover_all_allowed_pairs_and_the_triples_at_the_privacy_boundary():
    own = space()
    cells = [*fast_cells(), *slow_cells()]
    assert combined(cells, 2, own.factors) == spelled(own, targets(own, 2, own.factors))
    assert combined(cells, 3, BOUNDARY) == spelled(own, targets(own, 3, BOUNDARY))
    assert combined(fast_cells(), 2, BOUNDARY) == spelled(own, targets(own, 2, BOUNDARY))
    assert combined(fast_cells(), 1, own.factors) == {((name, value),) for name, value in own.values}


def can_be(known, own_rules, settled):
    """Whether some cell has these values: by trying, the factor with the fewest values that break no rule first."""

    def is_broken(partial):
        return any(
            partial.get(rule.when[0]) in rule.when[1] and name in partial and partial[name] not in own
            for rule in own_rules
            for name, own in rule.needs.items()
        )

    left = {
        name: [value for value in values if not is_broken({**settled, name: value})]
        for name, values in known.items()
        if name not in settled
    }
    if is_broken(settled) or not left:
        return not is_broken(settled)
    name = min(left, key=lambda own: len(left[own]))
    return any(can_be(known, own_rules, {**settled, name: value}) for value in left[name])


def test_no_cell_breaks_a_rule_and_no_cell_could_have_what_is_not_covered():
    cells, known, own_rules = [*fast_cells(), *slow_cells()], factors(), rules()
    assert all(rule.is_kept(cell) for rule in own_rules for cell in cells)
    covered = combined(cells, 2, known)
    left = 0
    for first, second in combinations(known, 2):
        for one, other in product(known[first], known[second]):
            if ((first, one), (second, other)) not in covered:
                left += 1
                assert not can_be(known, own_rules, {first: one, second: other}), (first, one, second, other)
    assert left


def test_the_same_cells_are_made_every_time_and_none_twice():
    own = space()
    assert tuple(cover(own, all_targets(own), fast_cells(), COSTLY)) == slow_cells()
    names = [described(cell) for cell in (*fast_cells(), *slow_cells())]
    assert len(set(names)) == len(names)
