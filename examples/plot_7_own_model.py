"""
A model of your own
===================

:class:`~gorelm.ScreenedRegressor` fits any regressor to the rows and cells in which gorelm finds
nothing wrong. Here: gradient boosting on the flats of ``examples/data/flats.csv``.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.multioutput import MultiOutputRegressor

from gorelm import ScreenedRegressor, TableRegressor
from gorelm.metrics import rrmse

folder = Path("data") if Path("data").is_dir() else Path("examples", "data")
table = pd.read_csv(folder / "flats.csv", index_col="flat")
targets = ["rent", "heating"]
X, y = table.drop(columns=targets), table[targets]

boosting = MultiOutputRegressor(HistGradientBoostingRegressor(random_state=0))
models = {
    "boosting": TableRegressor(boosting, random_state=0),
    "boosting, screened": TableRegressor(ScreenedRegressor(boosting), random_state=0),
    "gorelm's own": TableRegressor(random_state=0),
}

# %%
# Each fold screens its own training rows. The errors are those of the correct flats, which are
# known because the table is made up: relative RMSE, 0 is perfect, 1 is no better than the mean.

correct = ~table.index.isin(pd.read_csv(folder / "flats-errors.csv")["flat"])
folds = KFold(3, shuffle=True, random_state=0)
errors = {}
for name, model in models.items():
    predicted = cross_val_predict(model, X, y, cv=folds)
    errors[name] = rrmse(y[correct], predicted[correct])
    print(f"{name:20} rent {errors[name][0]:.2f}, heating {errors[name][1]:.2f}")

# %%

fig, ax = plt.subplots(figsize=(7, 3), layout="constrained")
places = np.arange(len(errors))
for k, target in enumerate(targets):
    ax.barh(places + 0.2 * (1 - 2 * k), [e[k] for e in errors.values()], 0.36, label=target)
ax.set_yticks(places, list(errors))
ax.invert_yaxis()
ax.set_xlabel("relative RMSE of the correct flats")
ax.legend(frameon=False)
plt.show()
