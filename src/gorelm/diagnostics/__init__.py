"""Outlier thresholds, displays of a fit, and the page about a fit.

Displays follow scikit-learn's conventions: ``from_estimator`` draws, ``plot(ax=...)`` draws again,
``ax_`` and ``figure_`` are where. They need matplotlib (``pip install "gorelm[plot]"``); the page
of :func:`write_fit_report` needs jinja2, too (``pip install "gorelm[report]"``).
"""

from importlib import import_module
from typing import TYPE_CHECKING

from gorelm.diagnostics.outlier_scores import outlier_threshold, split_in_two

if TYPE_CHECKING:
    from gorelm.diagnostics.cell_map import CellMapDisplay
    from gorelm.diagnostics.convergence import ConvergenceDisplay
    from gorelm.diagnostics.growth import GrowthDisplay
    from gorelm.diagnostics.judging import Judgement, judge
    from gorelm.diagnostics.outliers import OutlierDisplay
    from gorelm.diagnostics.paths import PathDisplay
    from gorelm.diagnostics.predictions import PredictedObservedDisplay
    from gorelm.diagnostics.report.fit import write_fit_report
    from gorelm.diagnostics.stability import FlagStability, flag_stability

__all__ = [
    "CellMapDisplay",
    "ConvergenceDisplay",
    "FlagStability",
    "GrowthDisplay",
    "Judgement",
    "OutlierDisplay",
    "PathDisplay",
    "PredictedObservedDisplay",
    "flag_stability",
    "judge",
    "outlier_threshold",
    "split_in_two",
    "write_fit_report",
]

_MODULES = {
    "CellMapDisplay": "cell_map",
    "ConvergenceDisplay": "convergence",
    "FlagStability": "stability",
    "GrowthDisplay": "growth",
    "Judgement": "judging",
    "OutlierDisplay": "outliers",
    "PathDisplay": "paths",
    "PredictedObservedDisplay": "predictions",
    "flag_stability": "stability",
    "judge": "judging",
    "write_fit_report": "report.fit",
}


def __getattr__(name: str) -> object:
    # Estimators import this package for the thresholds, without matplotlib.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
