"""Which rows to distrust, and pictures and pages of how a fit went.

Displays follow scikit-learn's conventions: ``from_estimator`` draws, ``plot(ax=...)`` draws again,
``ax_`` and ``figure_`` are where. They need matplotlib (``pip install "gorelm[plot]"``); the page
of :func:`write_fit_report` needs jinja2, too (``pip install "gorelm[report]"``).
"""

from gorelm.diagnostics.convergence import ConvergenceDisplay
from gorelm.diagnostics.growth import GrowthDisplay
from gorelm.diagnostics.outliers import OutlierDisplay
from gorelm.diagnostics.page import write_fit_report
from gorelm.diagnostics.paths import PathDisplay
from gorelm.diagnostics.predictions import PredictedObservedDisplay
from gorelm.diagnostics.scores import outlier_threshold, split_in_two

__all__ = [
    "ConvergenceDisplay",
    "GrowthDisplay",
    "OutlierDisplay",
    "PathDisplay",
    "PredictedObservedDisplay",
    "outlier_threshold",
    "split_in_two",
    "write_fit_report",
]
