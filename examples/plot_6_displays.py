"""
Displays
========

The displays of :mod:`gorelm.diagnostics`.
"""

import matplotlib.pyplot as plt

from gorelm import GORELMRegressorCV, RobustELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import (
    CellMapDisplay,
    ConvergenceDisplay,
    OutlierDisplay,
    PathDisplay,
    PredictedObservedDisplay,
)

data = make_multitarget(400, outlier_ratio=0.2, random_state=0)
model = GORELMRegressorCV(n_hidden=100, n_lams=15, random_state=0).fit(data.X, data.T)

# %%
# Outlier scores. The largest are labelled with their row numbers.

OutlierDisplay.from_estimator(model)
plt.show()

# %%
# Scores of the cells, of a robust fit to targets with some wrong rows and single wrong cells.

T = make_multitarget(400, outlier_ratio=0.03, random_state=0).T
T[5, 0] += 40.0
T[50, 2] -= 80.0
robust = RobustELMRegressor(effort="fast", n_hidden=100, random_state=0).fit(data.X, T)
CellMapDisplay.from_estimator(robust, n_rows=25, target_names=data.target_names)
plt.show()

# %%
# Predictions against observations. Flagged rows are far from the diagonal.

PredictedObservedDisplay.from_estimator(model, data.X, data.T)
plt.show()

# %%
# Results of the cross-validation for every penalty.

PathDisplay.from_estimator(model)
plt.show()

# %%
# Duality gap, residuals and penalties of the last fit.

ConvergenceDisplay.from_estimator(model)
plt.show()
