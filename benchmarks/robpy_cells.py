"""Cells that robpy flags, for `detection.py`: robpy needs an environment of its own.

    python robpy_cells.py {DDC,CellMCD} table.npy judged.npz

The file written has scores and flags of all cells, and the CPU seconds of the fit.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import pandas as pd


def main(method: str, table: str, out: str) -> None:
    values = np.load(table)
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
    scores, flags = np.abs(np.asarray(scores, float)), np.asarray(flags, bool)
    np.savez(out, scores=scores, flags=flags, seconds=seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
