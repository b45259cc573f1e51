"""When and how far the penalties rho and sigma of a run are adapted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gorelm.certificate import squares
from gorelm.iterate import Iterate
from gorelm.prox import Array
from gorelm.rows import Moves, Rows

__all__ = ["FROM_SCRATCH", "RESUMED", "Schedule", "adapt_penalties"]


class Schedule(NamedTuple):
    """The iteration of the first adaptation, and the smallest factor that is worth one."""

    first: int
    worthwhile: float


# Chosen for fewest iterations to a gap of 1e-3: the first on the six sets of benchmarks/solver.py,
# the second, for runs that begin where others ended, on rf1 (five other sets agree).
FROM_SCRATCH = Schedule(40, 2.0)
RESUMED = Schedule(20, 1.5)
LARGEST_CHANGE = 4.0


def adapt_penalties(s: Iterate, moves: Moves | None, rows: Rows, worthwhile: float) -> None:
    """Balance how fast each split and its multiplier move, relative to their sizes."""
    if moves is not None:
        factor = _balance(moves.primal, moves.size, moves.error_change, moves.UU, worthwhile)
        HtE = s.HtD + s.HtU
        s.HtU = s.HtU / factor[:, None]
        s.HtD = HtE - s.HtU
        s.rho = s.rho * factor
        rows.rescale(factor)
        moves.UT, moves.UU = moves.UT / factor, moves.UU / factor**2
    if s.sigma is not None:
        factor = _balance(
            squares(s.B - s.Z),
            np.maximum(squares(s.Z), squares(s.B)),
            squares(s.Z_change),
            squares(s.V),
            worthwhile,
        )
        s.sigma = s.sigma * factor
        s.V = s.V / factor[:, None]


def _balance(
    primal: Array, size: Array, change: Array, multiplier: Array, worthwhile: float
) -> Array:
    """Factor for a penalty: (relative primal residual / relative dual residual)^(1/2).

    Arrays are squared norms. Factors below `worthwhile` are not worth a new factorisation, large
    ones are held back, and a split that has come to rest says nothing.
    """
    moving = (primal > 0) & (size > 0) & (multiplier > 0) & (change > 1e-18 * multiplier)
    relative_primal = np.where(moving, primal, 1.0) / np.where(moving, size, 1.0)
    relative_dual = np.where(moving, change, 1.0) / np.where(moving, multiplier, 1.0)
    ratio = relative_primal / relative_dual
    factor = np.clip(ratio**0.25, 1 / LARGEST_CHANGE, LARGEST_CHANGE)
    return np.where((factor > worthwhile) | (factor < 1 / worthwhile), factor, 1.0)
