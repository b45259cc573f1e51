"""
A table from a file
===================

``examples/data/flats.csv`` has 300 flats with categories, missing values and errors in twelve rows.
The table is made up (``examples/data/make_flats.py``), so ``flats-errors.csv`` can tell which rows
are wrong.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

import gorelm
from gorelm import TableRegressor
from gorelm.datasets import read_table

folder = Path("data") if Path("data").is_dir() else Path("examples", "data")
table = read_table(folder / "flats.csv").set_index("flat")
table.head()

# %%
# :class:`~gorelm.TableRegressor` encodes the categories, imputes the missing years, and leaves out
# of the training what it finds wrong.

targets = ["rent", "heating"]
X, y = table.drop(columns=targets), table[targets]
model = TableRegressor(random_state=0).fit(X, y)
print(*model.notes_, sep="\n")

# %%
# The findings, the most suspicious rows first, with given and expected values. The last column says
# what was made wrong.

found = model.findings(X, y)
shown = ["gorelm.kind", "rent", "gorelm.expected.rent", "heating", "gorelm.expected.heating"]
errors = pd.read_csv(folder / "flats-errors.csv", index_col="flat")["error"]
flagged = found[found["gorelm.flagged"]]
flagged[shown].round(0).join(errors)

# %%
# Given against expected values: flagged cells are far from the diagonal.

fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, target in zip(axes, targets, strict=True):
    expected, given = found[f"gorelm.expected.{target}"], found[target]
    off = found[f"gorelm.flagged.{target}"]
    ax.scatter(expected[~off], given[~off], s=10, color="#0072b2", label="not flagged")
    ax.scatter(expected[off], given[off], s=24, color="#d55e00", marker="^", label="flagged")
    ends = [expected.min(), expected.max()]
    ax.plot(ends, ends, color="black", linewidth=1, linestyle="--")
    ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_title(target)
    ax.set_xlabel("expected")
axes[0].set_ylabel("given")
axes[0].legend(frameon=False)
plt.show()

# %%
# :func:`gorelm.clean` drops the wrong rows and blanks the single wrong cells. The log has every
# change, and restores the table.

cleaned = gorelm.clean(table, targets)
print(len(table), "rows before,", len(cleaned.table), "after;", len(cleaned.log), "changes")
cleaned.log[["id", "column", "old", "why"]].head()

# %%

print(gorelm.cleaning.restore(cleaned.table, cleaned.log).equals(table))
