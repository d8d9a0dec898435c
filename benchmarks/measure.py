"""How everything here is measured: variants that take turns, and the peak of memory.

A noisy machine disturbs variants alike if they take turns within one run. A ratio is therefore taken within each round,
and its median over rounds reported. On a GPU the clock stops when the device has finished.
"""

import ctypes
import gc
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

__all__ = ["Build", "Step", "Times", "code_state", "device", "machine", "peak_megabytes", "print_peak", "take_turns"]

Step = Callable[[], object]
Build = Callable[[int], Step]
"""Makes a step on that many records."""


def device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def machine() -> str:
    """What figures are filed under."""
    return torch.cuda.get_device_name() if device() == "cuda" else f"{torch.get_num_threads()} CPU threads"


def code_state() -> str:
    """The commit, and whether Python files differ from it (figures are written into the tree and do not count)."""
    git = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.check_output([*git, "describe", "--always"], text=True, stderr=subprocess.DEVNULL)
        changed = subprocess.check_output([*git, "status", "--porcelain", "--", ":/*.py"])
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + ("-dirty" if changed else "")


@dataclass(frozen=True)
class Times:
    """Seconds of a call of each variant, one number per round, and of its very first call."""

    seconds: Mapping[str, Sequence[float]]
    first: Mapping[str, float]

    def median(self, name: str) -> float:
        """Seconds of a call."""
        return statistics.median(self.seconds[name])

    def ratios(self, name: str, base: str) -> list[float]:
        """To another variant, round by round."""
        return [one / other for one, other in zip(self.seconds[name], self.seconds[base], strict=True)]

    def beside(self, name: str, base: str) -> dict[str, float | list[float]]:
        """Milliseconds of a call, and the ratio to another variant with its range over rounds."""
        ratios = self.ratios(name, base)
        return {
            "milliseconds": 1e3 * self.median(name),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
        }


def take_turns(steps: Mapping[str, Step], rounds: int, at_least: float = 0.25, label: str = "timing") -> Times:
    """Time all variants in turn, `rounds` times over; each turn fills `at_least` seconds after a call that warms up.

    With ``at_least=0`` a turn is one call and nothing warms up but the first one: for calls that take long.
    """
    first = {name: timed(step) for name, step in steps.items()}
    calls = {name: _calls(step, at_least) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in track(range(rounds), label, console=Console(stderr=True)):
        for name, step in steps.items():
            if at_least:
                _make_room()
                step()
            seconds[name].append(timed(step, calls[name]))
    return Times(seconds, first)


def timed(step: Step, calls: int = 1) -> float:
    """Seconds of a call."""
    _synchronise()
    start = time.perf_counter()
    for _ in range(calls):
        step()
    _synchronise()
    return (time.perf_counter() - start) / calls


def _calls(step: Step, at_least: float) -> int:
    return max(1, math.ceil(at_least / timed(step))) if at_least else 1


def _synchronise() -> None:
    if device() == "cuda":
        torch.cuda.synchronize()


def _make_room() -> None:
    """No variant is to work in what another has left in torch's cache."""
    if device() == "cuda":
        torch.cuda.empty_cache()


def peak_megabytes(build: Build, size: int, again: Sequence[str]) -> float:
    """The most memory that model, data and steps take, on top of the libraries.

    On a GPU it is what torch's allocator has given out, here and now. On a CPU it is the peak of a fresh process:
    `again` is the command line of one that calls `print_peak` with the same `build`.
    """
    if device() == "cuda":
        return _device_peak(build, size)
    finished = subprocess.run([sys.executable, *again], capture_output=True, text=True, check=True)
    return float(finished.stdout.split()[-1])


def print_peak(build: Build, size: int) -> None:
    """What the fresh process does; a first round on two records loads all libraries, the second counts."""
    for records in (2, size):
        ctypes.CDLL(None).malloc_trim(0)  # gives back what the first round has left
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        before = _in_status("VmRSS")
        _three_steps(build, records)
        peak = _in_status("VmHWM")
    print((peak - before) / 1024)


def _device_peak(build: Build, size: int) -> float:
    for records in (2, size):
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        _three_steps(build, records)
        peak = torch.cuda.max_memory_allocated()
    gc.collect()
    return (peak - before) / 2**20


def _three_steps(build: Build, records: int) -> None:
    step = build(records)
    for _ in range(3):
        step()


def _in_status(field: str) -> int:
    """Kilobytes that Linux reports for this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
