"""Where a run stands between two steps; what a checkpoint holds of it, and how it goes on from there."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpbnn._warn import warn
from dpbnn.methods.state import load_state, state_dict
from dpbnn.privacy.ledger import Ledger
from dpbnn.privacy.noise.randomness import Randomness
from dpbnn.privacy.purchases import LedgerError
from dpbnn.training.checkpoint import Checkpoint, Saved, current_environment, digests_of
from dpbnn.training.prepare import on_current_device
from dpbnn.training.steps import Work

__all__ = ["Position"]


@dataclass
class Position:
    """A run after `step` steps. `digests` and `environment` show whether it is resumed with what it began with."""

    work: Work
    state: Any
    ledger: Ledger
    step: int = 0
    how: str = ""
    digests: Mapping[str, bytes] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def first(cls, work: Work, ledger: Ledger, folder: Checkpoint | None) -> "Position":
        """Before the first step that is left: of a new run, or of the interrupted one in the folder."""
        if ledger.plan != work.plan:
            raise LedgerError("a run was to be paid for by the ledger of another plan")
        with on_current_device(work.device):
            position = cls(work, work.initial_state(), ledger)
            if folder is None:
                return position
            records = type(work.records).__name__
            position.environment = current_environment(work.device, work.execution, work.checked.engine, records)
            if (saved := folder.resumed()) is not None:
                position._resume(saved, folder)
            else:
                position.digests = digests_of(work)
                position.save(folder)
            return position

    def save(self, folder: Checkpoint | None) -> None:
        """Write down where the run stands: until the folder is removed, the same call goes on from there."""
        if folder is None:
            return
        randomness = self.work.randomness
        state = {"seed": self.work.seed, "method": state_dict(self.state), "how": self.how}
        folder.write(Saved(randomness.key, randomness.source, self.step, state, self.digests, self.environment))

    def draw_afresh(self, folder: Checkpoint) -> None:
        """Go on with a fresh key: what was charged stays charged."""
        self.work = replace(self.work, randomness=self.work.randomness.renewed())
        self.digests = digests_of(self.work)
        self.save(folder)  # first: with the old key, forgotten marks would let its noise be used again
        self.ledger.forget_marks()
        again = len(self.ledger.charges) - self.step
        if again > 0:
            warn(
                "The resumed run may round differently (taken over, or another machine, version, precision or number "
                f"of threads), so it draws fresh noise: {again} steps are charged again, and the run ends that many "
                "steps short."
            )

    def _resume(self, saved: Saved, folder: Checkpoint) -> None:
        self.work = replace(self.work, randomness=Randomness(saved.key, saved.source), seed=saved.state["seed"])
        folder.check(saved, digests_of(self.work))
        self.state = self.work.initial_state()
        load_state(self.state, saved.state["method"])
        self.ledger.resume(folder.charges())
        self.step, self.how, self.digests = saved.step, saved.state["how"], saved.digests
        if self.environment != saved.environment or folder.is_taken_over:
            self.draw_afresh(folder)
