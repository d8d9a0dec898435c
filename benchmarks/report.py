"""The tables and pictures of docs/speed.md, from the JSON files beside the programs: no figure is typed by hand.

In the page, ``<!-- figures: NAME -->`` and ``<!-- end -->`` stand around what is made here.
"""

import importlib
import re
import sys
from pathlib import Path

from program import IMAGES, Parser, Program, mark_of, uninterrupted, write

__all__ = ["PAGE", "filled", "main"]

PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
PLACE = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """The page with today's tables."""
    return PLACE.sub(lambda found: found[1] + _figures(_program(found[2])) + found[3], page)


def _program(file: str) -> Program:
    return importlib.import_module(file).PROGRAM


def _figures(program: Program) -> str:
    results = program.results()
    if not results:
        return "\nNo figures were taken yet.\n\n"
    tables = [table.for_page() for machine, figures in results.items() for table in program.tables(machine, figures)]
    has_picture = program.picture is not None
    picture = [f"![{program.name}](images/{program.name}.svg)"] if has_picture else []
    return "\n" + "\n\n".join(tables + picture) + "\n\n"


def _is_shown(program: Program) -> bool:
    """Whether the picture, if there is to be one, was made of the figures that are written down."""
    if program.picture is None or not program.results():
        return True
    picture = IMAGES / f"{program.name}.svg"
    return picture.is_file() and mark_of(program.results()) in picture.read_text()


def main(options: list[str]) -> int:
    """Write page and pictures; with --check, say whether they show the figures that are written down."""
    parser = Parser("report", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if anything is out of date")
    check = parser.parse_args(options).check
    before = PAGE.read_text()
    after = filled(before)
    programs = [_program(found[2]) for found in PLACE.finditer(before)]
    if check:
        old = [PAGE.name] * (after != before) + [f"{one.name}.svg" for one in programs if not _is_shown(one)]
        for name in old:
            print(f"{name} does not agree with the figures; python benchmarks report writes it.", file=sys.stderr)
        return int(bool(old))
    files = {PAGE: after.encode()}
    for program in programs:
        files |= program.drawn(program.results())
    with uninterrupted():
        write(files)
    count = sum(bool(program.results()) for program in programs)
    print(f"{PAGE} and {IMAGES} show the figures of {count} programs out of {len(programs)}.")
    return 0
