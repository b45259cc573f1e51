"""
Rows in chunks
==============

OS-ELM is fitted to rows in chunks of any size and does not store them. After every chunk the model
equals, up to rounding, the ridge regression on all rows so far.
"""

import matplotlib.pyplot as plt
import numpy as np

from gorelm import OSELMRegressor, RELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.metrics import arrmse

data = make_multitarget(3000, outlier_ratio=0.0, random_state=0)
X_test, T_test = data.X[2000:], data.T_clean[2000:]

model = OSELMRegressor(C=10, n_hidden=200, random_state=0)
seen, errors = [], []
for rows in np.array_split(np.arange(2000), 20):
    model.partial_fit(data.X[rows], data.T[rows])
    seen.append(model.n_samples_seen_)
    errors.append(arrmse(T_test, model.predict(X_test)))

# %%
# The same rows in one call. The first chunk determines the scalings, so scaling is switched off in
# both models.

unscaled = {"C": 10, "n_hidden": 200, "input_scaling": None, "target_scaling": None}
online = OSELMRegressor(**unscaled, random_state=0)
for rows in np.array_split(np.arange(2000), 20):
    online.partial_fit(data.X[rows], data.T[rows])
at_once = RELMRegressor(**unscaled, random_state=0).fit(data.X[:2000], data.T[:2000])
difference = np.abs(online.predict(X_test) - at_once.predict(X_test)).max()
print(f"largest difference between the two: {difference:.0e}")

# %%
# The loss of OS-ELM is squared. Remove outliers from a chunk first, or keep the rows and use a
# robust method.

fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
ax.plot(seen, errors, "o-", markersize=3, color="#0072b2")
ax.set_xlabel("rows seen")
ax.set_ylabel("aRRMSE on test rows")
ax.set_ylim(bottom=0)
plt.show()
