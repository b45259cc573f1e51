"""Cells that robpy flags, for `detection.py`: robpy needs an environment of its own.

    python robpy_cells.py {DDC,CellMCD} table.npy judged.npz

The file written has scores and flags of all cells, and the CPU seconds of the fit. Columns that
robpy refuses (fewer than four values, or more than half of them equal) have NaN and no flags.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd


def main(method: str, table: str, out: str) -> None:
    every = np.load(table)
    fine = [len(np.unique(column)) > 3 and _mad(column) > 1e-8 for column in every.T]
    values = every[:, fine]
    start = time.process_time()
    if method == "DDC":
        from robpy.outliers import DDC

        model = DDC().fit(pd.DataFrame(values))
        scores, flags = model.standardized_residuals_, model.cellwise_outliers_
    else:
        from robpy.covariance import CellMCD

        model = CellMCD().fit(values)
        scores, flags = model.residuals, model.W == 0
    seconds = time.process_time() - start
    all_scores, all_flags = np.full(every.shape, np.nan), np.zeros(every.shape, dtype=bool)
    all_scores[:, fine], all_flags[:, fine] = np.abs(np.asarray(scores, float)), np.asarray(flags)
    np.savez(out, scores=all_scores, flags=all_flags, seconds=seconds)


def _mad(column: np.ndarray) -> float:
    return float(np.median(np.abs(column - np.median(column))))


if __name__ == "__main__":
    main(*sys.argv[1:])
