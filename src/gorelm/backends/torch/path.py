"""Regularisation paths on a device: H and T as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gorelm._solver.admm import ADAPTIVE, Settings
from gorelm._solver.far_targets import bring_near
from gorelm._solver.prepared import PathProblem, solve_rows
from gorelm._solver.problem import Problem, norms
from gorelm._solver.state import Solution, WarmStart
from gorelm._typing import Array, Callback
from gorelm.backends.torch.rows import TorchRows


def tensor_problem(
    H: Tensor, T: Any, like: Problem, omega: Array | None, tol: float
) -> PathProblem:
    """Check tensors and return them as the problem of a path; rows are multiplied by omega."""
    H = H.detach() if H.dtype == torch.float32 else H.detach().double()
    T = torch.as_tensor(T, dtype=torch.float64, device=H.device).detach()
    for name, A in (("H", H), ("T", T)):
        if not bool(torch.isfinite(A).all()):
            raise ValueError(f"{name} has values that are not finite")
    there = None if omega is None else torch.as_tensor(omega, device=H.device)
    weights = None if there is None else there.to(H.dtype)
    if there is not None and weights is not None:
        H, T = H * weights[:, None], T * there[:, None]
    near = bring_near(T, like, there, f"f{H.element_size()}")
    T = torch.as_tensor(near, dtype=H.dtype).contiguous()
    # The kernels expect contiguous rows.
    return TorchPrepared(H.contiguous(), T, weights)


class TorchPrepared:
    """H (N, L) and T (N, m) on a device, rows times `omega` (N,), for many problems."""

    keeps_states = False

    def __init__(self, H: Tensor, T: Tensor, omega: Tensor | None) -> None:
        self.H, self.T, self._omega = H, T, omega

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        return len(self.T), self.H.shape[1], self.T.shape[1]

    @property
    def itemsize(self) -> int:
        """Bytes of an element of H."""
        return int(self.H.element_size())

    def _rows(self) -> TorchRows:
        return TorchRows(self.H, self.T, self.H.shape[1], self._omega)

    def solve(
        self,
        problem: Problem,
        settings: Settings = ADAPTIVE,
        callback: Callback | None = None,
        *,
        start: WarmStart | None = None,
        keep_state: bool = False,
    ) -> Solution:
        """Minimise a batch of problems."""
        with torch.cuda.device_of(self.H):
            return solve_rows(self._rows(), problem, settings=settings, callback=callback)

    def largest_pull(self, problem: Problem) -> float:
        """Return the largest row of H'Y for the pull Y of the targets on an empty model."""
        T = self.T.double()
        if problem.loss != "squared":
            r: Tensor = problem.residual_norms(T)
            r = r[:, None] if r.ndim == 1 else r
            weight = 1.0 if self._omega is None else self._omega.double()[:, None]
            T = weight * T / torch.clamp(r, min=1e-300).maximum(weight * problem.delta[0] + 0 * r)
        total = torch.zeros((self.H.shape[1], T.shape[1]), dtype=T.dtype, device=T.device)
        for start in range(0, len(T), 65536):
            rows = slice(start, start + 65536)
            total += self.H[rows].double().T @ T[rows]
        pull = norms(total, grouped=problem.grouped)
        return float(pull.max()) if total.numel() else 0.0

    def empty_objective(self, problem: Problem) -> float:
        """Return the loss of the model without weights (of the first problem)."""
        nothing = np.zeros((self.H.shape[1], 1, self.T.shape[1]))
        return float(self._rows().loss(nothing, problem.select(np.arange(1)))[0, 0])
