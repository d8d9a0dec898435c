"""What `docs/extending.md` shows, added from outside the package and put to use.

`skeleton("A method")` runs the one Python block below that heading as a module that others can import, which is what a
user's own file is.
"""

import re
import sys
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parent.parent.parent / "docs" / "extending.md"


def code(heading: str) -> str:
    """The file that the page shows below a heading."""
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(shown)


def skeleton(heading: str) -> ModuleType:
    """This file as a module, importable as `extending_<heading>`."""
    name = "extending_" + re.sub(r"\W+", "_", heading.lower())
    if name not in sys.modules:
        module = sys.modules[name] = ModuleType(name)
        exec(compile(code(heading), f"{PAGE.name}: {heading}", "exec"), module.__dict__)
    return sys.modules[name]
