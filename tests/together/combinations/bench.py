"""The runs of one cell, each made when it is first asked for, and once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import dpbnn
from tests.together.combinations import running
from tests.together.combinations.running import Outcome
from tests.together.combinations.subjects import Subject
from tests.together.combinations.watch import Seen


@dataclass(frozen=True)
class Bench:
    """A cell's runs, in folders of their own below `folder`."""

    subject: Subject
    folder: Path

    @cached_property
    def whole(self) -> Outcome:
        """On all records."""
        return running.run(self.subject, self.subject.records, self.folder / "whole")

    @cached_property
    def without_her(self) -> Outcome:
        """Without the person, and with the releases of the run on all records."""
        records = self.subject.records.without_her()
        return running.run(self.subject, records, self.folder / "without-her", replay=self.whole.seen)

    @cached_property
    def of_others(self) -> Outcome:
        """On altogether different records, again with these releases."""
        return running.run(self.subject, self.subject.others, self.folder / "others", replay=self.whole.seen)

    @cached_property
    def without_checkpoint(self) -> Outcome:
        """On all records, in one go."""
        return running.run(self.subject, self.subject.records, self.folder / "one-go", has_checkpoint=False)

    @cached_property
    def resumed(self) -> tuple[Seen, Outcome]:
        """On all records, interrupted at some step, before or after its noise is drawn, and started again."""
        seed, steps = self.subject.seed, self.subject.size.steps
        crash_at = seed // 2 % steps, bool(seed // 16 % 2)
        answers = self.whole.seen.queries
        return running.interrupted(self.subject, self.subject.records, self.folder / "resumed", crash_at, answers)

    @property
    def made(self) -> list[Outcome]:
        """All that have been made so far."""
        known = vars(self)
        plain = [known[name] for name in ("whole", "without_her", "of_others", "without_checkpoint") if name in known]
        return [*plain, *([known["resumed"][1]] if "resumed" in known else [])]

    def plan(self, number: int = 0) -> dpbnn.PrivacyPlan:
        """What a run says that it was charged."""
        return self.whole.releases[number].guarantee.plan
