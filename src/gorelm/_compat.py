"""The private interfaces of scikit-learn that the library uses; no other file imports any.

Each exists, unchanged, in every supported version; `tests/test_compat.py` checks the parts that are
used. When a new version of scikit-learn moves one, only this file has to change.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import HasMethods, Interval, RealNotInt, StrOptions
from sklearn.utils.validation import _check_method_params as check_method_params
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples

__all__ = [
    "HasMethods",
    "Interval",
    "RealNotInt",
    "StrOptions",
    "check_method_params",
    "check_sample_weight",
    "in_cross_validation",
    "input_columns",
    "num_samples",
    "safe_indexing",
    "validate_params",
]


class _Validated(Protocol):
    def _validate_params(self) -> None: ...


def validate_params(estimator: _Validated) -> None:
    """Check an estimator's parameters against its `_parameter_constraints`."""
    estimator._validate_params()


class _Columns(Protocol):
    _transformer_to_input_indices: Mapping[str, Sequence[int]]


def input_columns(table: _Columns) -> Mapping[str, Sequence[int]]:
    """Return the places of the input columns of each part of a fitted column transformer."""
    return table._transformer_to_input_indices


def in_cross_validation() -> bool:
    """Whether a function of scikit-learn's that fits and scores folds is among the callers."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__") == "sklearn.model_selection._validation":
            return True
        frame = frame.f_back
    return False
