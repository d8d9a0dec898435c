"""What must be true in every cell. A check says what is wrong; whoever runs it says where."""

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from threading import Barrier
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from dpbnn.types import Weights
from tests.together.combinations import truths
from tests.together.combinations.bench import Bench
from tests.together.combinations.covering import Cell
from tests.together.combinations.running import Outcome, fitted
from tests.together.combinations.subjects import MARK
from tests.together.combinations.untouched import watched_for_changes
from tests.together.combinations.watch import Noise, counting

ROUNDS = 4
"""How often several threads try to get into each other's way."""
UNLIKELY = 1e-12
"""What noise may look like by chance: there are some ten thousand tensors of it in all cells."""


class BrokenError(AssertionError):
    """What a check has found."""


def require(holds: bool, otherwise: str) -> None:
    """One sentence about what is wrong."""
    if not holds:
        raise BrokenError(otherwise)


def equals_the_plain_truth(bench: Bench) -> None:
    """Clipped sums are those of a plain loop over the records of the run's own batches."""
    seen = bench.whole.seen
    require(len(seen.clips) == len(seen.releases), f"{len(seen.clips)} sums led to {len(seen.releases)} releases")
    is_long = bench.subject.has_dropout and bench.subject.size.batch > 4096  # with masks, no two records are the same
    for clip, release in list(zip(seen.clips, seen.releases, strict=True))[: 1 if is_long else None]:
        expected = truths.clipped_sum(clip)
        require(release.before.keys() == expected.total.keys(), f"weights are {sorted(release.before)}")
        off = truths.distance(expected.total, release.before)
        allowed = truths.ROUNDING.get(clip.precision or "", truths.OF_FLOAT32) * expected.amount
        if off > allowed:  # perhaps the loop itself is inexact: both, from the exact sum
            exact = truths.clipped_sum(truths.in_float64(clip)).total
            off, allowed = truths.distance(exact, release.before), 4 * truths.distance(exact, expected.total)
        what = f"step {release.step}: the sum over {len(clip.x)} records, of norm {truths.norm(expected.total):.3g},"
        require(off <= allowed, f"{what} is off by {off:.3g}, where rounding explains {allowed:.3g}")


def batches_are_those_that_were_drawn(bench: Bench) -> None:
    """Every record that was drawn is there once, and no other; and batches are of the size that the cell is about."""
    seen, cell = bench.whole.seen, bench.subject.cell
    sizes = [len(clip.x) for clip in seen.clips]
    require(sizes == [len(rows) for rows in seen.drawn], f"{[len(rows) for rows in seen.drawn]} drawn, {sizes} used")
    for clip, rows in zip(seen.clips, seen.drawn, strict=True):
        expected = bench.subject.records.x[rows]
        same = bench.subject.is_table or torch.equal(clip.x.nan_to_num(), expected.nan_to_num())
        require(same, "a batch holds other records than those that were drawn")
    is_so = {"mostly empty": min(sizes) == 0 < max(sizes), "above 4096": min(sizes) > 4096}
    require(is_so.get(cell["batch"], max(sizes) <= 40), f"batches have {sizes} records")
    engines = {release.settings["engine"] for release in bench.whole.releases}
    require(engines == {bench.subject.engine}, f"gradients are taken by {engines}, not by {bench.subject.engine}")


def one_person_moves_it_by_at_most_what_is_charged(bench: Bench) -> None:
    """With and without all of one person's rows, sums and what queries get differ by no more than the plan says."""
    rows, plan = bench.subject.rows, bench.plan()
    with_her, without = bench.whole.seen, bench.without_her.seen
    first = len(with_her.clips[0].x) - len(without.clips[0].x)
    require(first == rows, f"{first} rows of hers are in the first batch, where {rows} may count")
    for clip, other in zip(with_her.clips, without.clips, strict=True):
        same = all(torch.equal(a[: len(b)], b) for a, b in zip(clip.masks, other.masks, strict=False))
        require(same, "with and without her, others have other masks: nothing can be compared")
    for release, other in zip(with_her.releases, without.releases, strict=True):
        moved, allowed = truths.distance(release.before, other.before), rows * plan.clip_norm_at(release.step)
        require(moved <= allowed, f"step {release.step}: she moves the sum by {moved:.6g}, charged is {allowed:.6g}")
    for query, other in zip(with_her.queries, without.queries, strict=True):
        if "LInf" in query.kind:
            moved = float(np.abs(query.data - other.data).max())
            require(moved <= rows, f"she moves a score by {moved:g}, charged is {rows}")
            continue
        more = len(query.data) - len(other.data)
        require(0 <= more <= rows, f"a query gets {more} rows of hers, where {rows} may count")
        if not bench.subject.has_dropout:  # predictions draw masks by position, which are secret
            same = np.allclose(query.data[: len(other.data)], other.data, rtol=1e-5, atol=1e-6, equal_nan=True)
            require(same, "without her, a query gets other values of others")


def nothing_is_visible_but_through_the_noise(bench: Bench) -> None:
    """With the same releases, other records look the same from outside."""
    for what, other in (("without one person", bench.without_her), ("on other records", bench.of_others)):
        shown, found = bench.whole.shown, other.shown
        differing = [name for name in sorted(shown.keys() | found.keys()) if shown.get(name) != found.get(name)]
        require(not differing, f"{what}, {', '.join(differing)} differ: {_excerpt(shown, found, differing)}")


def _excerpt(shown: Mapping[str, object], found: Mapping[str, object], differing: list[str]) -> str:
    return " / ".join(str(own.get(name))[:300] for name in differing[:1] for own in (shown, found))


def the_ledger_equals_the_plan(bench: Bench) -> None:
    """As many releases as steps, each with the noise and the sensitivity of its step; and queries as they are paid."""
    seen, releases = bench.whole.seen, bench.whole.releases
    steps = bench.plan().steps
    require(len(seen.releases) == steps * len(releases), f"{len(seen.releases)} releases for {steps} steps")
    _require_noise(seen.releases)
    for number, release in enumerate(releases):
        plan, given = release.guarantee.plan, bench.subject.plan
        charged = release.settings["releases_charged"]
        require(charged == steps, f"{charged} releases are charged, and the plan has {steps} steps")
        for step, noise in enumerate(seen.releases[number * steps : (number + 1) * steps]):
            claimed = noise.step, noise.noise_multiplier, noise.sensitivity
            planned = step, plan.noise_at(step), plan.clip_norm_at(step)
            require(claimed == planned, f"step, noise and sensitivity are {claimed}, planned were {planned}")
            if not bench.subject.is_table:  # estimators and the command line make their plan themselves
                least = given.noise_at(step) * (1 - 1e-6)
                require(noise.noise_multiplier >= least, f"step {step} has less noise than the given plan")
        paid, spent = sorted(plan.pure_epsilons), sorted(query.epsilon for query in seen.queries)
        is_paid = len(paid) == len(spent) and np.allclose(paid, spent, rtol=1e-6, atol=0)
        require(is_paid, f"queries spend {spent}, and the plan pays {paid}")


def _require_noise(releases: list[Noise]) -> None:
    """The sum itself gets noise, all of it, of the standard deviation that was claimed; and no noise comes twice."""
    standard = []
    for noise in releases:
        before, after = (torch.cat([own[name].double().ravel() for name in sorted(own)]) for own in _types(noise))
        if noise.noise_multiplier == 0:
            require(torch.equal(before, after), f"step {noise.step} was to have no noise")
            continue
        require(len(noise.normals) == 1, f"step {noise.step}: noise is added {len(noise.normals)} times")
        added, scale = noise.normals[0], noise.noise_multiplier * noise.sensitivity
        is_whole = added.before.shape == before.shape and torch.equal(added.before.float(), before.float())
        require(is_whole, f"step {noise.step}: noise goes to another sum, or to a part of it")
        require(torch.equal(added.after.float(), after.float()), f"step {noise.step}: the sum changes after its noise")
        require(added.scale == scale, f"step {noise.step}: the noise is scaled by {added.scale:g}, not by {scale:g}")
        standard.append((added.after - added.before) / scale)
        _require_normals(noise, standard[-1])
    for one, other in combinations(standard, 2):
        require(not torch.allclose(one, other, atol=1e-3), "the noise of two steps is the same")


def _require_normals(noise: Noise, normals: Tensor) -> None:
    """By the squares of each tensor's own."""
    parts = normals.split([own.numel() for _, own in sorted(noise.before.items())])
    for part in parts:
        square = float(part.square().sum())
        chance = 2 * min(chi2.cdf(square, len(part)), chi2.sf(square, len(part)))
        require(chance > UNLIKELY, f"step {noise.step}: noise of size {(square / len(part)) ** 0.5:.3g}, not of 1")


def _types(noise: Noise) -> tuple[Weights, Weights]:
    """Before and after, in the types in which they are released."""
    return {name: own.to(noise.after[name]) for name, own in noise.before.items()}, noise.after


def everything_else_is_untouched(bench: Bench) -> None:
    """Model, records, generators and settings are as they were, and nothing but the library's own warnings is heard."""
    for outcome in bench.made:
        require(not outcome.changed, f"changed: {', '.join(outcome.changed)}")
        strange = [text for kind, text in outcome.shown["warnings"] if kind != "DpbnnWarning"]
        require(not strange, f"warnings of others: {strange}")


def a_resumed_run_ends_as_an_uninterrupted_one(bench: Bench) -> None:
    """Bit for bit, charged once, and nothing secret stays behind."""
    if not bench.subject.is_table:
        _require_same(bench.whole, bench.without_checkpoint, "with a checkpoint")
    if bench.subject.cell["checkpoint"] == "interrupted":
        before, resumed = bench.resumed
        _require_same(bench.whole, resumed, "interrupted and resumed")
        steps = {noise.step: noise for noise in before.releases}
        for noise in resumed.seen.releases:
            known = steps.get(noise.step, noise).after
            same = all(torch.equal(known[name], own) for name, own in noise.after.items())
            require(same, f"step {noise.step} was released twice, and not the same")
        asked, paid = len(before.queries) + len(resumed.seen.queries), len(bench.plan().pure_epsilons)
        require(asked == paid, f"{asked} queries before and after the interruption, and {paid} are paid")
    left = [path for path in bench.folder.rglob("*") if path.name in ("checkpoint", "model.unfinished")]
    require(not left, f"{left} is left behind")


def _is_same(first: Tensor, second: Tensor) -> bool:
    """Bit for bit; a run without privacy may diverge, and NaN in the same places is the same."""
    return torch.equal(first.isnan(), second.isnan()) and torch.equal(first.nan_to_num(), second.nan_to_num())


def _require_same(first: Outcome, second: Outcome, how: str) -> None:
    for one, other in zip(first.releases, second.releases, strict=True):
        ours, theirs = one.posterior.tensors(), other.posterior.tensors()
        require(ours.keys() == theirs.keys(), f"{how} the posterior has {sorted(theirs)}")
        differing = [name for name in ours if not _is_same(ours[name], theirs[name])]
        require(not differing, f"{how} {', '.join(differing)} of the posterior differ")
        require(dict(one.settings) == dict(other.settings), f"{how} settings differ: {one.settings}, {other.settings}")
        require(one.guarantee == other.guarantee, f"{how} the guarantee differs")


def threads_do_not_touch_each_other(bench: Bench) -> None:
    """Several threads at once, on the same model, records and method, get what one gets alone."""
    subject, threads = bench.subject, int(bench.subject.cell["threads"])
    with warnings.catch_warnings(action="ignore"):
        (alone,) = fitted(subject, subject.records, subject.network())
        for _ in range(ROUNDS):
            model = subject.network()
            with watched_for_changes(model, subject.records.x, subject.records.y) as changed, counting() as steps:
                found = _at_once(threads, lambda model=model: fitted(subject, subject.records, model))
            errors = [repr(own.exception()) for own in found if own.exception() is not None]
            require(not errors, f"{len(errors)} of {threads} threads fail: {errors[:1]}")
            require(not changed, f"changed: {', '.join(changed)}")
            require(len(steps) == threads * subject.plan.steps, f"{len(steps)} releases in {threads} threads")
            for own in found:
                one, other = own.result()[0].posterior.tensors(), alone.posterior.tensors()
                require(all(torch.equal(one[name], other[name]) for name in other), "a thread gets another posterior")


def _at_once(threads: int, task: Callable[[], Any]) -> list[Future[Any]]:
    together = Barrier(threads)

    def run() -> Any:
        together.wait()
        return task()

    with ThreadPoolExecutor(threads) as pool:
        return [pool.submit(run) for _ in range(threads)]


def nobody_counts_with_more_rows_than_allowed(bench: Bench) -> None:
    """Of a person with a thousand rows, no mechanism gets more than the few that are charged, and some get these."""
    rows, first = bench.subject.rows, bench.whole.seen.clips[0]
    mark_x, mark_y = first.x[-1], first.y[-1]
    in_batches = [
        int(((clip.x == mark_x).all(dim=1) & (clip.y == mark_y).reshape(len(clip.y), mark_y.numel()).all(dim=1)).sum())
        for clip in bench.whole.seen.clips
    ]
    require(max(in_batches) <= rows, f"{max(in_batches)} rows of hers are in a batch, where {rows} may count")
    require(in_batches[0] == rows, f"{in_batches[0]} rows of hers are recognised in the first batch, which has {rows}")
    in_queries = [int((query.data == MARK).sum()) for query in bench.whole.seen.queries]
    require(max(in_queries, default=0) <= rows, f"{max(in_queries, default=0)} rows of hers are in a query, not {rows}")
    is_recognised = "bought bounds" not in bench.subject.cell["entry"] or rows in in_queries
    require(is_recognised, f"{in_queries} rows of hers are recognised in queries for bounds, which have {rows}")


@dataclass(frozen=True)
class Invariant:
    """A check, and the cells in which it means something."""

    check: Callable[[Bench], None]
    applies: Callable[[Cell], bool]

    @property
    def name(self) -> str:
        """As it is said in messages."""
        return self.check.__name__.replace("_", " ")


def _always(cell: Cell) -> bool:
    return True


INVARIANTS = (
    Invariant(batches_are_those_that_were_drawn, _always),
    Invariant(equals_the_plain_truth, _always),
    Invariant(one_person_moves_it_by_at_most_what_is_charged, lambda cell: cell["levels"] != "without privacy"),
    Invariant(nothing_is_visible_but_through_the_noise, _always),
    Invariant(the_ledger_equals_the_plan, _always),
    Invariant(a_resumed_run_ends_as_an_uninterrupted_one, lambda cell: cell["checkpoint"] != "none"),
    Invariant(nobody_counts_with_more_rows_than_allowed, lambda cell: cell["entry"] != "fit"),
    Invariant(threads_do_not_touch_each_other, lambda cell: cell["threads"] != "1"),
    Invariant(everything_else_is_untouched, _always),
)
"""In the order in which they are looked at; the last one is about all runs that the others have made."""
