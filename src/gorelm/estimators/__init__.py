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
from gorelm.estimators.growing import (
    EMELMRegressor,
    IELMRegressor,
    IGORELMRegressor,
    IRELMRegressor,
)
from gorelm.estimators.online import OSELMRegressor
from gorelm.estimators.online_robust import RobustOSELMRegressor
from gorelm.estimators.robust import RobustELMRegressor
from gorelm.estimators.screened import ScreenedRegressor
from gorelm.estimators.table import TableRegressor

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
    "RobustOSELMRegressor",
    "ScreenedRegressor",
    "TableRegressor",
]
