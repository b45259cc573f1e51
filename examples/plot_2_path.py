"""
Choosing the penalty
====================

With a penalty that is too small the model follows the noise; with one that is too large it is too
smooth. Cross-validation chooses the penalty on rows that may be wrong, so the error of a validation
row is measured by its norm, not by its square.
"""

import matplotlib.pyplot as plt
import numpy as np

from gorelm import GORELMRegressorCV
from gorelm.datasets import make_multitarget
from gorelm.metrics import arrmse

data = make_multitarget(300, outlier_ratio=0.25, random_state=0)
model = GORELMRegressorCV(n_hidden=100, n_lams=21, random_state=0).fit(data.X, data.T)
print(f"chosen: lam = {model.lam_:.3g}")

# %%
# The one-standard-error rule selects the largest penalty whose score is within one standard error
# of the best. The model is smoother.

careful = GORELMRegressorCV(n_hidden=100, n_lams=21, one_standard_error=True, random_state=0)
careful.fit(data.X, data.T)
print(f"one standard error: lam = {careful.lam_:.3g}")

# %%
# The search used contaminated rows only. The errors of the two models on clean test rows follow.
# With many outliers among the validation rows the standard error is large, and the rule selects a
# much larger penalty: use it if a smooth or small model is worth a larger error.

test = make_multitarget(600, outlier_ratio=0.0, random_state=0)
X_test, T_test = test.X[300:], test.T_clean[300:]
for name, fitted in (("best score", model), ("one standard error", careful)):
    print(f"{name:20} aRRMSE {arrmse(T_test, fitted.predict(X_test)):.3f}")

# %%
# In every fold all 21 penalties are solved as one batch.

results = model.cv_results_
lams, score = results["param_lam"], -results["mean_test_score"]
spread = results["std_test_score"] / np.sqrt(4)  # of the mean of five folds

fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.errorbar(lams, score, yerr=spread, fmt="o-", markersize=3, capsize=2, color="#0072b2")
ax.axvline(model.lam_, color="#009e73", label="best mean score")
ax.axvline(careful.lam_, color="#d55e00", linestyle="--", label="one standard error")
ax.set_xscale("log")
ax.set_xlabel("lam")
ax.set_ylabel("mean norm of validation errors")
ax.legend(frameon=False)
plt.show()
