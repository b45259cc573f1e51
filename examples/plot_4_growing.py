"""
Growing a network
=================

How many hidden nodes does a problem need? The network grows until the error on validation rows no
longer decreases. Every size has a warm start from the last one, and a duality gap.
"""

import matplotlib.pyplot as plt

from gorelm import IGORELMRegressor
from gorelm.datasets import make_multitarget
from gorelm.diagnostics import GrowthDisplay

data = make_multitarget(500, outlier_ratio=0.2, random_state=0)
model = IGORELMRegressor(
    lam=0.1,
    n_initial=10,
    n_step=20,
    max_hidden=400,
    validation=3,
    patience=2,
    activation="cosine",
    weight_scale=0.5,
    random_state=0,
)
model.fit(data.X, data.T)
print(f"stopped by {model.stopped_by_} at {model.hidden_.n_nodes} nodes")

# %%
# ``growth_`` contains a record for every size.

for record in model.growth_[::3]:
    print(
        f"{record['n_hidden']:4.0f} nodes: error {record['error']:.3f}, validation error "
        f"{record['validation_error']:.3f}, gap {record['dual_gap']:.1e}"
    )

# %%
# ``grow`` adds nodes to a fitted model.

model.grow(30)
print(f"now {model.hidden_.n_nodes} nodes")

# %%
# The figure omits this last step, which has no validation error.

GrowthDisplay(model.growth_[:-1]).plot()
plt.show()
