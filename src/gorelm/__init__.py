"""Outlier-robust multi-target regression with random-feature networks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gorelm._moved import install
from gorelm._version import __version__ as __version__

if TYPE_CHECKING:
    from gorelm.cleaning import clean as clean
    from gorelm.estimators import (
        ELMRegressor,
        EMELMRegressor,
        GORELMRegressor,
        GORELMRegressorCV,
        GRELMRegressor,
        GRELMRegressorCV,
        IELMRegressor,
        IGORELMRegressor,
        IRELMRegressor,
        ORELMRegressor,
        ORELMRegressorCV,
        OSELMRegressor,
        RELMRegressor,
        RELMRegressorCV,
        RobustELMRegressor,
        RobustOSELMRegressor,
        ScreenedRegressor,
        TableRegressor,
    )
    from gorelm.intervals import ConformalRegressor
    from gorelm.io import load as load
    from gorelm.io import save as save

__all__ = [
    "ConformalRegressor",
    "ELMRegressor",
    "EMELMRegressor",
    "GORELMRegressor",
    "GORELMRegressorCV",
    "GRELMRegressor",
    "GRELMRegressorCV",
    "IELMRegressor",
    "IGORELMRegressor",
    "IRELMRegressor",
    "ORELMRegressor",
    "ORELMRegressorCV",
    "OSELMRegressor",
    "RELMRegressor",
    "RELMRegressorCV",
    "RobustELMRegressor",
    "RobustOSELMRegressor",
    "ScreenedRegressor",
    "TableRegressor",
]

install()
del install

# Not for `import *`, which should not shadow other libraries' functions of these names.
_FUNCTIONS = {"clean": "gorelm.cleaning", "load": "gorelm.io", "save": "gorelm.io"}
_MODULES = (
    "cleaning",
    "datasets",
    "diagnostics",
    "extend",
    "findings",
    "io",
    "metrics",
    "onnx",
    "path",
    "stream",
)


def __getattr__(name: str) -> Any:
    # Estimators import scikit-learn and SciPy, which the command line's help need not wait for.
    if name == "ConformalRegressor":
        from gorelm.intervals import ConformalRegressor

        return ConformalRegressor
    if name in __all__:
        from gorelm import estimators

        return getattr(estimators, name)
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name in _MODULES:
        return import_module(f"gorelm.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_FUNCTIONS, *_MODULES})
