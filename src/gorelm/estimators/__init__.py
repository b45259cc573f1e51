"""scikit-learn estimators."""

from gorelm.estimators.batch import (
    ELMRegressor,
    GORELMRegressor,
    GRELMRegressor,
    ORELMRegressor,
    RELMRegressor,
)
from gorelm.estimators.cv import (
    GORELMRegressorCV,
    GRELMRegressorCV,
    ORELMRegressorCV,
    RELMRegressorCV,
)
from gorelm.estimators.robust import RobustELMRegressor

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
