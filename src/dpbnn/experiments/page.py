"""Results as files: JSON, a picture as SVG and PNG, and one page with a section for each item.

The page is made of the JSON files alone, so that no figure on it is typed by hand.
"""

import io
import json
import platform
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import torch

from dpbnn.experiments import ITEMS
from dpbnn.experiments.item import Item, Results, Size
from dpbnn.experiments.running import write

__all__ = ["FOLDER", "PAGE", "page", "write_item", "write_page"]

FOLDER, PAGE = "reproduction", "reproduction.md"
HEAD = """# The paper, again

Every table and figure of "Differentially Private Bayesian Neural Networks on Accuracy, Privacy and Reliability" (Zhang,
Bu, Chen, Long 2022), by `dpbnn reproduce all`: the paper's figure, ours at the paper's settings, and ours at the best
settings that were found within the same epsilon. Figures are medians over seeds, with the least and the largest behind
them. This page is made from the JSON files in `reproduction/`, which hold every single run.

Epsilon is for records that are added or removed, at delta 1e-5, by the tighter of two valid accountants (PLD). It is
that of one release. Choosing settings is a release too: the best ones were chosen on public images, and the epsilons do
not include that.
"""


def write_item(item: Item, results: Results, size: Size, device: str, folder: Path) -> None:
    """What came out, and its picture."""
    about = {"name": item.name, "size": size.name, **_machine(device)}
    whole = about | results
    files = {f"{item.name}.json": f"{json.dumps(whole, indent=1)}\n".encode()}
    if item.picture is not None:
        files |= _drawn(item, whole)
    for name, contents in files.items():
        write(folder / FOLDER / name, contents)


def write_page(folder: Path) -> None:
    """All items that have results."""
    write(folder / PAGE, page(folder).encode())


def page(folder: Path) -> str:
    """From the JSON files."""
    sections = [HEAD]
    for item in ITEMS.values():
        file = folder / FOLDER / f"{item.name}.json"
        if file.is_file():
            results = json.loads(file.read_text())
            sections.append(_section(item, results))
    return "\n".join(sections)


def _section(item: Item, results: Mapping[str, Any]) -> str:
    how = f"`dpbnn reproduce {item.name}{'' if results['size'] == 'full' else ' --quick'}`"
    where = f"{results['device']}, torch {results['torch']}, {results['date']}"
    picture = [f"![{item.name}]({FOLDER}/{item.name}.svg)\n"] if item.picture is not None else []
    text = [f"## {item.title}\n", item.section(dict(results)) + "\n", *picture]
    if results["size"] != "full":
        text.insert(1, "*A quick version, whose figures mean nothing beside the paper's.*\n")
    return "\n".join([*text, f"{how} ({where}), [{item.name}.json]({FOLDER}/{item.name}.json)\n"])


def _drawn(item: Item, results: Results) -> dict[str, bytes]:
    import matplotlib

    assert item.picture is not None
    svg, png = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": item.name}):  # the same results give the same file
        figure = item.picture(results)
        figure.savefig(svg, format="svg", metadata={"Date": None})
        figure.savefig(png, format="png", dpi=200)
    return {f"{item.name}.svg": svg.getvalue(), f"{item.name}.png": png.getvalue()}


def _machine(device: str) -> dict[str, str]:
    name = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version(), "date": f"{date.today()}"}
