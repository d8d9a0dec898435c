"""A covering array: few cells in which every allowed pair of values occurs, and every triple of some factors.

    >>> space = Space({"engine": ["a", "b"], "batch": ["1", "7"], "mask": ["no", "yes"]})
    >>> cells = cover(space, targets(space, 2, space.factors))
    >>> len(cells), "engine=a batch=1 mask=no" == " ".join(f"{name}={value}" for name, value in cells[0].items())
    (4, True)

Greedy: a cell begins with the first combination that no cell has yet, and every further factor takes the value that
brings most new ones; among equals the one that was taken least often, or of factors whose other values are costly the
one that is listed first. Nothing is random.

Reference: Cohen, Dalal, Fredman and Patton 1997 (the greedy construction).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product

Cell = dict[str, str]
"""A value for every factor, by name."""
Target = tuple[int, ...]
"""A combination of values, each by its number in the space."""


@dataclass(frozen=True)
class Rule:
    """Where the factor of `when` has one of these values, every factor of `needs` has one of its own there."""

    because: str
    when: tuple[str, Collection[str]]
    needs: Mapping[str, Collection[str]]

    def is_kept(self, cell: Mapping[str, str]) -> bool:
        """Whether a whole cell keeps to it."""
        factor, values = self.when
        return cell[factor] not in values or all(cell[other] in own for other, own in self.needs.items())


@dataclass(frozen=True)
class Space:
    """Factors with their values, the usual one first, and the rules between them."""

    factors: Mapping[str, Sequence[str]]
    rules: Sequence[Rule] = field(default=())

    def __post_init__(self) -> None:
        for rule in self.rules:
            for factor, values in (rule.when, *rule.needs.items()):
                unknown = set(values) - set(self.factors[factor])
                if unknown:
                    raise ValueError(f"the rule {rule.because!r} names {unknown}, which {factor} does not have")

    @cached_property
    def values(self) -> list[tuple[str, str]]:
        """All values with their factor, by number."""
        return [(factor, value) for factor, values in self.factors.items() for value in values]

    @cached_property
    def numbers(self) -> dict[tuple[str, str], int]:
        """The number of each value."""
        return {value: number for number, value in enumerate(self.values)}

    @cached_property
    def of_factor(self) -> dict[str, list[int]]:
        """The numbers of a factor's values."""
        return {factor: [self.numbers[factor, value] for value in values] for factor, values in self.factors.items()}

    @cached_property
    def beside(self) -> list[int]:
        """For each value, the values that may stand beside it, as bits; two of one factor never do."""
        everything = (1 << len(self.values)) - 1
        masks = [everything for _ in self.values]
        for own in self.of_factor.values():
            for number in own:
                masks[number] &= ~_bits(own) | 1 << number
        for rule in self.rules:
            (factor, values) = rule.when
            for number in (self.numbers[factor, value] for value in values):
                for other, allowed in rule.needs.items():
                    refused = set(self.of_factor[other]) - {self.numbers[other, value] for value in allowed}
                    masks[number] &= ~_bits(refused)
                    for beyond in refused:
                        masks[beyond] &= ~(1 << number)
        return masks

    def open_after(self, chosen: Iterable[int]) -> int:
        """The values that may stand beside all of these."""
        left = (1 << len(self.values)) - 1
        for number in chosen:
            left &= self.beside[number]
        return left

    def can_be_completed(self, left: int) -> bool:
        """Whether some cell has only values that are left.

        A value beside which everything that is left of other factors may stand can be taken; where every factor has
        such a value there is a cell. The values of a factor that has none are tried one after another.
        """
        unsettled: list[list[int]] = []
        for own, mask in zip(self.of_factor.values(), self.masks, strict=True):
            choices, others = [number for number in own if left >> number & 1], left & ~mask
            if not choices:
                return False
            if not any(others & self.beside[number] == others for number in choices):
                unsettled.append(choices)
        if not unsettled:
            return True
        return any(self.can_be_completed(left & self.beside[number]) for number in min(unsettled, key=len))

    @cached_property
    def masks(self) -> list[int]:
        """The values of each factor, as bits."""
        return [_bits(own) for own in self.of_factor.values()]

    def allows(self, chosen: Target) -> bool:
        """Whether some cell has all of these values."""
        left = self.open_after(chosen)
        return all(left >> number & 1 for number in chosen) and self.can_be_completed(left)


def targets(space: Space, strength: int, factors: Collection[str]) -> list[Target]:
    """All allowed combinations of `strength` values of different factors among these."""
    own = [space.of_factor[factor] for factor in space.factors if factor in factors]
    return [chosen for several in combinations(own, strength) for chosen in product(*several) if space.allows(chosen)]


def cover(
    space: Space, wanted: Iterable[Target], known: Sequence[Cell] = (), costly: Collection[str] = ()
) -> list[Cell]:
    """Cells that have all combinations between them, beside cells that are known already."""
    missing = _Missing(wanted)
    taken = Counter(dict.fromkeys(space.numbers.values(), 0))
    for cell in known:
        missing.strike(sorted(space.numbers[value] for value in cell.items()))
    made = []
    while missing.left:
        chosen = _filled(space, missing, next(iter(missing.left)), taken)
        missing.strike(chosen)
        taken.update(number for number in chosen if space.values[number][0] not in costly)
        made.append(dict(space.values[number] for number in chosen))
    return made


class _Missing:
    """The combinations that no cell has yet, in their order, and by size the values that occur in any."""

    def __init__(self, wanted: Iterable[Target]) -> None:
        self.left = dict.fromkeys(wanted)
        self.members: dict[int, set[int]] = {}
        for target in self.left:
            self.members.setdefault(len(target), set()).update(target)

    def strike(self, chosen: Sequence[int]) -> None:
        """A cell has these values, which are in their order."""
        for size, members in self.members.items():
            for target in combinations([number for number in chosen if number in members], size):
                self.left.pop(target, None)

    def gain(self, chosen: Sequence[int], number: int) -> int:
        """How many of them this value completes beside those that are chosen."""
        found = 0
        for size, members in self.members.items():
            if number in members:
                known = [own for own in chosen if own in members]
                found += sum(tuple(sorted((*own, number))) in self.left for own in combinations(known, size - 1))
        return found


def _filled(space: Space, missing: _Missing, first: Target, taken: Counter[int]) -> list[int]:
    """The values of a whole cell that has these."""
    chosen, left = list(first), space.open_after(first)
    settled = {space.values[number][0] for number in first}
    for factor in sorted(space.factors.keys() - settled, key=lambda own: (-len(space.factors[own]), own)):
        ranked = sorted(
            (number for number in space.of_factor[factor] if left >> number & 1),
            key=lambda number: (-missing.gain(chosen, number), taken[number], number),
        )
        number = next(own for own in ranked if space.can_be_completed(left & space.beside[own]))
        chosen.append(number)
        left &= space.beside[number]
    return sorted(chosen)


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))
