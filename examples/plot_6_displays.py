"""
Displays
========

The displays of :mod:`gorelm.diagnostics`, for one cross-validated fit.
"""

import matplotlib.pyplot as plt

from gorelm import GORELMRegressorCV
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import (
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
