"""scikit-learn estimators."""

from gorelm.estimators.batch import (
    ELMRegressor,
    GORELMRegressor,
    GRELMRegressor,
    ORELMRegressor,
    RELMRegressor,
)

__all__ = [
    "ELMRegressor",
    "GORELMRegressor",
    "GRELMRegressor",
    "ORELMRegressor",
    "RELMRegressor",
]
