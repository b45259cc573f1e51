"""
Finding outliers
================

A fitted model has an outlier score for every training row. The score comes either from the model
fitted to the row, or from models that were not fitted to it (out of fold).
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import precision_score, recall_score

from gorelm import GORELMRegressorCV, RobustELMRegressor
from gorelm.datasets import make_multitarget

data = make_multitarget(400, outlier_ratio=0.2, random_state=1)
search = GORELMRegressorCV(n_hidden=100, n_lams=11, random_state=0).fit(data.X, data.T)
robust = RobustELMRegressor(n_hidden=100, random_state=0).fit(data.X, data.T)

flags = {
    "GOR-ELM, training rows": search.outlier_mask_,
    "GOR-ELM, out of fold": search.cv_outlier_mask_,
    "RobustELM, out of fold": robust.outlier_mask_,
}
for name, mask in flags.items():
    precision, recall = precision_score(data.planted, mask), recall_score(data.planted, mask)
    print(f"{name:24} {mask.sum():3} flagged, precision {precision:.2f}, recall {recall:.2f}")

# %%
# ``outlier_scores_`` sort the rows: check the largest scores first.

worst = np.argsort(-robust.outlier_scores_)[:5]
print("check first:", worst, "planted:", data.planted[worst])

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
shown = (
    ("GOR-ELM, training rows", search.outlier_scores_, search.outlier_threshold_),
    ("RobustELM, out of fold", robust.outlier_scores_, robust.outlier_threshold_),
)
index = np.arange(len(data.planted))
for ax, (title, scores, threshold) in zip(axes, shown, strict=True):
    ax.scatter(index[~data.planted], scores[~data.planted], s=8, color="#0072b2", label="clean")
    ax.scatter(
        index[data.planted], scores[data.planted], s=12, color="#d55e00", marker="^", label="wrong"
    )
    ax.axhline(threshold, color="black", linewidth=1, linestyle="--", label="threshold")
    ax.set_yscale("log")
    ax.set_title(title)
    ax.set_xlabel("training row")
axes[0].set_ylabel("outlier score")
axes[0].legend(frameon=False, fontsize=8, loc="lower right")
plt.show()
