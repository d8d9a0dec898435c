"""Packages whose public names are imported when they are first used, so that nobody waits for the others.

Such a package lists its names once, in the stub ``__init__.pyi`` beside its ``__init__.py``: type checkers and editors
read the same file (https://scientific-python.org/specs/spec-0001).
"""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

__all__ = ["lazy_names"]


def lazy_names(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of the package with this ``__name__`` and ``__file__``.

    Public modules of the package are imported when they are first used, too.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [statement for statement in stub.body if isinstance(statement, ast.ImportFrom)]
    home_of = {alias.name: str(statement.module) for statement in imports for alias in statement.names}
    public = sorted(name for name in home_of if not name.startswith("_"))

    def get(name: str) -> object:
        home = home_of.get(name, package)
        if home != package:
            value = getattr(import_module(home), name)
            setattr(sys.modules[package], name, value)
            return value
        path = f"{package}.{name}"
        try:
            if not name.startswith("_"):
                return import_module(path)
        except ModuleNotFoundError as error:
            if error.name != path:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names() -> list[str]:
        present = {name for name in vars(sys.modules[package]) if name[0] != "_" or name[:2] == "__"}
        return sorted({*present, *public} - {"lazy_names"})

    return get, names, public
