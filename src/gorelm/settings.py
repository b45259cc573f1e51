"""How the ADMM loop runs: the adaptive configuration, the paper's, or your own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ADAPTIVE", "PAPER", "Settings"]


@dataclass(frozen=True)
class Settings:
    """How the loop runs. The defaults are the adaptive configuration; see also `PAPER`.

    Parameters
    ----------
    rho : float or None
        Penalty of both splits, fixed. None: from the data, adapted while running.
    relax : float
        Over-relaxation in [1, 2); 1 is none.
    always_split : bool
        Keep Z and V even where they do nothing.
    stop : {"gap", "residuals", "never"}
        Stop at a relative duality gap of `tol`, by the paper's primal and dual residuals, or only
        at `max_iter`.
    tol, eps_abs, eps_rel : float
        Tolerances of the two rules.
    max_iter : int
        Most iterations.
    """

    rho: float | None = None
    relax: float = 1.6
    always_split: bool = False
    stop: Literal["gap", "residuals", "never"] = "gap"
    tol: float = 1e-3
    eps_abs: float = 1e-3
    eps_rel: float = 1e-2
    max_iter: int = 5000


ADAPTIVE = Settings()
PAPER = Settings(rho=1.0, relax=1.0, always_split=True, stop="residuals", max_iter=1000)
