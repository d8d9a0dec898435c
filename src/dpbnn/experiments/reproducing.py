"""From names to files, which is what ``dpbnn reproduce`` does: JSON, a picture as SVG and PNG, and one page.

The page has a section for each item and is made of the JSON files alone, so that no figure on it is typed by hand.
"""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dpbnn.errors import DpbnnError
from dpbnn.experiments import ITEMS
from dpbnn.experiments.item import Item, Results, Size
from dpbnn.experiments.running import run_jobs, write

__all__ = ["FOLDER", "PAGE", "Reproduced", "page", "picture_mark", "reproduce", "write_page"]

FOLDER, PAGE = "reproduction", "reproduction.md"
FORMAT = 1
"""The version of the JSON files; a section that needs values which older files lack needs another one."""
HEAD = """# The paper, again

Every table and figure of "Differentially Private Bayesian Neural Networks on Accuracy, Privacy and Reliability" (Zhang,
Bu, Chen, Long 2022), by `dpbnn reproduce all`: the paper's figure, ours at the paper's settings, and ours at the best
settings that were found within epsilon 0.894, the largest of the paper's on MNIST. Where nothing else is said, figures
are medians over seeds (5 in full runs, 20 for the regression), with the least and the largest behind them. This page is
made from the JSON files in `reproduction/`.

Epsilon is for records that are added or removed, rounded up, at delta 1e-5 where nothing else is said, by the tighter
of two valid accountants (mostly PLD). It is that of one release. Choosing settings is a release too: the best ones were
chosen on public images, and the epsilons do not include that.
"""


@dataclass(frozen=True)
class Reproduced:
    """Which items are written, and how many jobs are left of how many."""

    written: tuple[str, ...]
    left: int
    jobs: int


def reproduce(
    names: Sequence[str], size: Size, folder: Path, minutes: float | None = None, show: bool = True
) -> Reproduced:
    """Do the jobs that are not done yet, and write all items that are complete."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    jobs = {name: ITEMS[name].jobs(size) for name in names}
    all_jobs = {key: job for jobs_of_item in jobs.values() for key, job in jobs_of_item.items()}
    kept = folder / FOLDER / ".jobs"
    try:
        kept.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DpbnnError(f"--out must be a folder that can be written to, got {folder} ({error}).") from error
    done = run_jobs(all_jobs, kept, device, minutes, show)
    complete = [name for name in names if jobs[name].keys() <= done.keys()]
    for name in complete:
        _write_item(ITEMS[name], size, {key: done[key] for key in jobs[name]}, folder)
    write_page(folder)
    return Reproduced(tuple(complete), len(all_jobs) - len(done), len(all_jobs))


def _write_item(item: Item, size: Size, done: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """Write results and picture from what is kept of the item's jobs."""
    results = item.results(size, {key: job["found"] for key, job in done.items()})
    about = [job["about"] for job in done.values()]
    where = {name: ", ".join(sorted({job[name] for job in about})) for name in ("device", "torch", "python", "date")}
    seconds = round(sum(job["seconds"] for job in about), 1)
    whole = {"name": item.name, "format": FORMAT, "size": size.name, **where, "seconds": seconds} | results
    write(folder / FOLDER / f"{item.name}.json", f"{json.dumps(whole, indent=1)}\n".encode())
    _draw(item, whole, folder)


def write_page(folder: Path, draw: bool = False) -> None:
    """Write the page of all items that have results; with `draw`, draw their pictures again too."""
    for item, results in _written(folder):
        if draw:
            _draw(item, results, folder)
    write(folder / PAGE, page(folder).encode())


def page(folder: Path) -> str:
    """The text of the page, from the JSON files."""
    written = {item.name: _section(item, results) for item, results in _written(folder)}
    missing = [f"`{name}`" for name in ITEMS if name not in written]
    left_out = [f"Not run yet: {', '.join(missing)}.\n"] if missing else []
    return "\n".join([HEAD, *left_out, *written.values()])


def _written(folder: Path) -> Iterator[tuple[Item, Results]]:
    """All items with their results, but for files of another format."""
    for item in ITEMS.values():
        file = folder / FOLDER / f"{item.name}.json"
        if file.is_file() and (results := json.loads(file.read_text())).get("format") == FORMAT:
            yield item, results


def _section(item: Item, results: Mapping[str, Any]) -> str:
    how = f"`dpbnn reproduce {item.name}{'' if results['size'] == 'full' else ' --quick'}`"
    where = f"{results['device']}, torch {results['torch']}, {results['date']}, {results['seconds']:.0f} s"
    picture = f"![{item.name}]({FOLDER}/{item.name}.svg)\n"
    text = [f"## {item.title}\n", item.section(dict(results)) + "\n", picture]
    if results["size"] != "full":
        text.insert(1, "*A quick version, whose figures mean nothing beside the paper's.*\n")
    return "\n".join([*text, f"{how} ({where}), [{item.name}.json]({FOLDER}/{item.name}.json)\n"])


def picture_mark(results: Results) -> str:
    """A hash of the results, written into their picture, so that an outdated picture is noticed."""
    return f"results {hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()[:16]}"


def _draw(item: Item, results: Results, folder: Path) -> None:
    """Write the item's picture as SVG and PNG."""
    import matplotlib

    svg, png = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": item.name}):  # the same results give the same file
        figure = item.picture(results)
        figure.savefig(svg, format="svg", metadata={"Date": None, "Description": picture_mark(results)})
        figure.savefig(png, format="png", dpi=200)
    write(folder / FOLDER / f"{item.name}.svg", svg.getvalue())
    write(folder / FOLDER / f"{item.name}.png", png.getvalue())
