"""The factors of a run, which of their values go together, and the cells that are run.

A cell has one value of every factor. `RULES` is all there is to say about what cannot be combined.
"""

from collections.abc import Sequence
from functools import cache

from dpbnn.privacy.plan import CLIPPING_STYLES
from tests.together.combinations import makers
from tests.together.combinations.covering import Cell, Rule, Space, Target, cover, targets

BOUNDARY = ("method", "clipping", "levels", "batch", "micro_batch", "rows", "network", "precision")
"""Every triple of their values is covered: they decide what passes the privacy boundary."""
COSTLY = ("batch", "network", "workers", "entry", "runs", "threads")
"""Slow to vary: they keep the usual value unless a combination needs another."""
ALWAYS_SHOWN = ("method", "network", "likelihood")


def factors() -> dict[str, Sequence[str]]:
    """All of them, the usual value first; methods, likelihoods and priors come from their registries."""
    return {
        "method": list(makers.method_forms()),
        "network": ["mlp", "cnn", "bare", "tied", "embedding", "custom", "gru"],
        "likelihood": list(makers.likelihood_forms()),
        "prior": makers.prior_kinds(),
        "optimizer": list(makers.OPTIMIZERS),
        "keep": list(makers.KEEPING),
        "clipping": list(CLIPPING_STYLES),
        "levels": ["one", "two noise levels", "two clip norms", "both", "without privacy"],
        "batch": ["usual", "mostly empty", "one", "above 4096"],
        "micro_batch": ["none", "1", "several", "one"],
        "precision": ["default", "float32", "bfloat16"],
        "rows": ["1", "3"],
        "dropout": ["no", "yes"],
        "frozen": ["no", "yes"],
        "records": ["tensors", "arrays", "dataset", "file"],
        "numbers": ["floats", "whole"],
        "workers": ["0", "1"],
        "entry": [
            "fit",
            *(f"{own}{buys}" for own in ("estimator", "command line") for buys in ("", ", bought bounds")),
        ],
        "runs": ["one", "many"],
        "checkpoint": ["none", "uninterrupted", "interrupted"],
        "public_data": ["no", "yes"],
        "threads": ["1", "3"],
    }


def rules() -> list[Rule]:
    """What cannot be combined, and why."""
    return [*_rules_of_methods(), *_rules_of_size(), *_rules_of_entries()]


def _rules_of_methods() -> list[Rule]:
    with_optimizer, with_chain = (makers.methods_that_take(own) for own in ("optimizer", "keep_as"))
    return [
        Rule("some methods need masks", ("method", makers.methods_that_need_dropout()), {"dropout": ["yes"]}),
        Rule("few have an optimizer", ("optimizer", _but("optimizer", "plain")), {"method": with_optimizer}),
        Rule("only samplers keep a chain", ("keep", _but("keep", "samples")), {"method": with_chain}),
        Rule("tokens are whole numbers", ("network", ["embedding"]), {"numbers": ["whole"]}),
    ]


def _rules_of_size() -> list[Rule]:
    small = {"batch": _but("batch", "above 4096")}
    return [
        Rule("thousands of records take seconds in a loop over a GRU", ("network", ["gru"]), small),
        Rule("thousands of micro-batches take seconds", ("micro_batch", ["1"]), small),
    ]


def _rules_of_entries() -> list[Rule]:
    usual = {name: values[:1] for name, values in factors().items()}
    fit, estimators, commands = (_entries(own) for own in ("fit", "estimator", "command line"))
    chosen = ("network", "optimizer", "keep", "clipping", "levels", "micro_batch", "precision", "frozen")
    chosen_otherwise = {
        "method": makers.methods_for_tables(),
        "likelihood": makers.likelihoods_for_tables(),
        "prior": ["Gaussian"],
    }
    return [
        Rule("workers read a Dataset", ("workers", ["1"]), {"records": ["dataset"]}),
        Rule("only the command line reads files", ("records", ["file"]), {"entry": commands}),
        Rule("the command line reads files", ("entry", commands), {"records": ["file"]}),
        Rule("it always has a checkpoint", ("entry", commands), {"checkpoint": _but("checkpoint", "none")}),
        Rule("estimators take arrays", ("entry", estimators), {"records": ["arrays"]}),
        Rule(
            "estimators and the command line choose the network and the plan themselves",
            ("entry", [*estimators, *commands]),
            {name: usual[name] for name in (*chosen, "public_data")} | chosen_otherwise,
        ),
        Rule(
            "fit_many takes neither a checkpoint nor public data",
            ("runs", ["many"]),
            {"entry": fit} | {name: usual[name] for name in ("checkpoint", "public_data", "threads")},
        ),
        Rule(
            "threads share what they are given, and a checkpoint cannot be shared",
            ("threads", ["3"]),
            {"entry": fit, "workers": ["0"], "checkpoint": ["none"]},
        ),
    ]


def _entries(beginning: str) -> list[str]:
    return [own for own in factors()["entry"] if own.startswith(beginning)]


def _but(factor: str, value: str) -> list[str]:
    return [own for own in factors()[factor] if own != value]


def space() -> Space:
    """All cells that there can be."""
    return Space(factors(), rules())


@cache
def fast_cells() -> tuple[Cell, ...]:
    """Every pair at the privacy boundary, and every value of the other factors."""
    own = space()
    return tuple(cover(own, fast_targets(own), costly=COSTLY))


@cache
def slow_cells() -> tuple[Cell, ...]:
    """What the fast ones leave open of all pairs, and of the triples at the boundary."""
    own = space()
    return tuple(cover(own, all_targets(own), fast_cells(), COSTLY))


@cache
def long_cells() -> tuple[Cell, ...]:
    """What all of these leave open of all triples, and of the quadruples at the boundary."""
    own = space()
    wanted = [*targets(own, 4, BOUNDARY), *targets(own, 3, own.factors)]
    return tuple(cover(own, wanted, [*fast_cells(), *slow_cells()], COSTLY))


def fast_targets(own: Space) -> list[Target]:
    """What the fast cells cover."""
    return [*targets(own, 2, BOUNDARY), *targets(own, 1, own.factors)]


def all_targets(own: Space) -> list[Target]:
    """What all cells together cover; the triples come first, since they have the fewest places."""
    return [*targets(own, 3, BOUNDARY), *targets(own, 2, own.factors)]


def described(cell: Cell) -> str:
    """A cell in short: the values that are not the usual ones, and those that are always named."""
    usual = {name: values[0] for name, values in factors().items()}
    shown = [_shown(name, cell[name]) for name in usual if name in ALWAYS_SHOWN or cell[name] != usual[name]]
    return ", ".join(shown)


def _shown(name: str, value: str) -> str:
    is_clear = name in (*ALWAYS_SHOWN, "prior", "clipping", "levels", "optimizer", "precision", "records", "entry")
    return value if is_clear else f"{name.replace('_', ' ')} {value}"
