"""Import paths that the documentation named before 0.1: they lead to `gorelm.extend`.

``from gorelm.problem import Problem`` works, and warns. `gorelm/__init__.py` puts `MovedFinder` at
the end of the finders, where it is asked only for modules that do not exist.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = (
    "gorelm.activations",
    "gorelm.admm",
    "gorelm.estimators.base",
    "gorelm.hidden",
    "gorelm.problem",
    "gorelm.prox",
    "gorelm.rows",
    "gorelm.solver",
    "gorelm.system",
)


class MovedFinder(MetaPathFinder, Loader):
    """Finds the modules of `MOVED`, whose names are those of `gorelm.extend`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module of `MOVED` comes from, and None for all others."""
        return ModuleSpec(name, self) if name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        """Fill in the names, and say where they are now."""
        warnings.warn(
            f"{module.__name__} has moved: import from gorelm.extend",
            DeprecationWarning,
            stacklevel=2,
        )
        extend = importlib.import_module("gorelm.extend")
        vars(module).update({name: getattr(extend, name) for name in extend.__all__})


def install() -> None:
    """Make the former paths importable."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.append(MovedFinder())
