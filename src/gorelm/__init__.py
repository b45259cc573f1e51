"""Outlier-robust multi-target regression with random-feature networks."""

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
)

__version__ = "0.1.0.dev0"

__all__ = [
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
]
