"""
Looking at a fit
================

The displays of :mod:`gorelm.diagnostics`, on one search.
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
# Which rows to distrust: the numbers beside the worst are those of the rows.

OutlierDisplay.from_estimator(model)
plt.show()

# %%
# Predictions against observations. Flagged rows lie off the diagonal.

PredictedObservedDisplay.from_estimator(model, data.X, data.T)
plt.show()

# %%
# What the search found for every penalty.

PathDisplay.from_estimator(model)
plt.show()

# %%
# How the last fit came to its end: the duality gap is a proven bound.

ConvergenceDisplay.from_estimator(model)
plt.show()
