"""Outlier-robust multi-target regression with random-feature networks."""

from gorelm.estimators import (
    ELMRegressor,
    GORELMRegressor,
    GORELMRegressorCV,
    GRELMRegressor,
    GRELMRegressorCV,
    ORELMRegressor,
    ORELMRegressorCV,
    RELMRegressor,
    RELMRegressorCV,
    RobustELMRegressor,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "ELMRegressor",
    "GORELMRegressor",
    "GORELMRegressorCV",
    "GRELMRegressor",
    "GRELMRegressorCV",
    "ORELMRegressor",
    "ORELMRegressorCV",
    "RELMRegressor",
    "RELMRegressorCV",
    "RobustELMRegressor",
]
