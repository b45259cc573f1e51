"""
Squared and robust loss
=======================

One input, two targets, and 30 % of the rows wrong in both targets. The same network is fitted
twice: with the squared loss (R-ELM), and with the norm of each row of errors as loss (GOR-ELM).
"""

import matplotlib.pyplot as plt
import numpy as np

from gorelm import GORELMRegressor, RELMRegressor

rng = np.random.default_rng(0)
x = np.sort(rng.uniform(-3, 3, 200))
clean = np.c_[np.sin(2 * x), np.cos(x)]
dirty = clean + rng.normal(scale=0.1, size=clean.shape)
wrong = rng.random(200) < 0.3
dirty[wrong] += rng.uniform(1.5, 4, size=(wrong.sum(), 2))

# %%
# Both models have 100 hidden nodes, drawn from the same seed. They differ only in the loss.

network = {"n_hidden": 100, "weight_scale": 5.0, "random_state": 0}
squared = RELMRegressor(C=10.0, **network).fit(x[:, None], dirty)
robust = GORELMRegressor(lam=0.1, **network).fit(x[:, None], dirty)

for name, model in (("R-ELM", squared), ("GOR-ELM", robust)):
    error = np.abs(model.predict(x[:, None]) - clean).mean()
    print(f"{name:8} mean distance from the clean function: {error:.3f}")

# %%
# The gradient of a squared error grows with the error. The gradient of the norm of a row has the
# same size for an error of 1 and for an error of 100.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharex=True)
for j, ax in enumerate(axes):
    ax.scatter(x[~wrong], dirty[~wrong, j], s=8, color="0.6", label="correct row")
    ax.scatter(x[wrong], dirty[wrong, j], s=12, color="#d55e00", marker="^", label="wrong row")
    ax.plot(x, clean[:, j], color="black", linewidth=1, linestyle="--", label="clean function")
    ax.plot(x, squared.predict(x[:, None])[:, j], color="#0072b2", label="R-ELM (squared)")
    ax.plot(x, robust.predict(x[:, None])[:, j], color="#009e73", linewidth=2, label="GOR-ELM")
    ax.set_title(f"target {j + 1}")
    ax.set_xlabel("x")
axes[1].legend(frameon=False, fontsize=8, loc="upper right")
plt.show()
