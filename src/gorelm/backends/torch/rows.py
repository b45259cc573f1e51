"""Rows on a PyTorch device: a GPU, or the CPU for tests.

H, E and U have the precision of the inputs. The loop's arrays of the size of B are on the device
too, in float64, and are copied to the host only when an iteration is checked. H'H is summed and
factorised in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gorelm._features.layer import HiddenLayer
from gorelm._solver.far_targets import NormSummary, within
from gorelm._solver.linalg import Factor
from gorelm._solver.problem import Problem
from gorelm._solver.rows import DeviceRows, Step, StepSums, Which
from gorelm._solver.state import Iterate
from gorelm._typing import Array, Indices, Mask
from gorelm.backends.torch.layer import BLOCK_ROWS, DeviceLayer
from gorelm.backends.torch.linalg import InverseFactor, SpectralFactor, on_device, on_host

try:
    from gorelm.backends.torch import kernels
except ImportError:  # Triton comes with PyTorch's CUDA builds only
    kernels = None  # type: ignore[assignment]


class TorchRows:
    """H, T, E and U on a device; for T, `omega` and `observed` see `gorelm._solver.rows.BlockRows`.

    H is a tensor (N, n_hidden or more; further columns are zeros), or a function that computes it
    for a slice of rows. The precision of T is that of E and U.
    """

    def __init__(
        self,
        H: Tensor | Callable[[slice], Tensor],
        T: Tensor,
        n_hidden: int,
        omega: Tensor | None = None,
        observed: Tensor | None = None,
    ) -> None:
        self._H, self.T, self._n_hidden = H, T, n_hidden
        self._omega, self._observed = omega, observed
        self.E = self.U = T.new_zeros((len(T), 0, T.shape[1]))
        self.HtT: Array = np.empty((0, 0))
        self.may_capture = False
        self._cap: tuple[Array, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, L, m)."""
        return len(self.T), self._n_hidden, self.T.shape[1]

    @property
    def complete(self) -> bool:
        """Whether every target cell is known."""
        return self._observed is None or bool(self._observed.all())

    # -- between host and device ---------------------------------------------------------------

    def put(self, values: list[Array]) -> list[Tensor]:
        """Copy arrays of the loop to the device in one transfer, in float64."""
        arrays = [np.asarray(array, dtype=np.float64) for array in values]
        there = on_device(np.concatenate([array.reshape(-1) for array in arrays]), self.T)
        parts = there.split([array.size for array in arrays])
        return [part.reshape(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def get(self, values: list[Tensor]) -> list[Array]:
        """Copy tensors to the host in one transfer, in float64."""
        here = on_host(torch.cat([tensor.reshape(-1).double() for tensor in values]))
        ends = np.cumsum([tensor.numel() for tensor in values])[:-1]
        parts = np.split(here, ends)
        return [part.reshape(tensor.shape) for part, tensor in zip(parts, values, strict=True)]

    def _in_rows(self, values: list[Array] | list[Tensor]) -> list[Tensor]:
        """Copy numbers to the device in the precision of the rows."""
        there: list[Tensor] = values if isinstance(values[0], Tensor) else self.put(values)
        return [number.to(self.T.dtype) for number in there]

    def accelerate(self, step: Step) -> Step:
        """Return the step as a CUDA graph, on a GPU."""
        return _Captured(step, self) if self.T.is_cuda else step

    def factor(self, like: Problem) -> Factor:
        """Factorise H'H, summed with H'T in one pass in float64."""
        n_hidden = self._n_hidden
        G = torch.zeros((n_hidden, n_hidden), dtype=torch.float64, device=self.T.device)
        HtT = torch.zeros((n_hidden, self.T.shape[1]), dtype=torch.float64, device=self.T.device)
        for rows, h in self._pass(BLOCK_ROWS):
            h = h[:, :n_hidden].double()
            HtT += h.T @ self.T[rows].double()
            # Only the lower triangle, in strips large enough to fill the device.
            for start in range(0, n_hidden, 512):
                strip = slice(start, start + 512)
                G[start:, strip].addmm_(h[:, start:].T, h[:, strip])
        self.HtT = on_host(HtT)
        self.may_capture = like.n_problems == 1  # a batch changes its shape, and fills the device
        return (InverseFactor if like.n_problems == 1 else SpectralFactor)(G)

    # -- the row pass ----------------------------------------------------------------------------

    def start(self, problem: Problem, cap: float = np.inf) -> Array:
        """Set U = 0 and E = 0, but where a norm of T is beyond `cap`, the E that takes it back."""
        n_rows, n_hidden, m = self.shape
        self.E = self.T.new_zeros((n_rows, problem.n_problems, m))
        self.U = torch.zeros_like(self.E)
        near = within(self.T, problem, self._omega, cap)
        if near is self.T:
            return np.zeros((n_hidden, problem.n_problems, m))
        self.E += (near - self.T)[:, None]
        return on_host(self._summed(self.E))

    def step(
        self,
        B: Tensor,
        problem: Problem,
        rho: Tensor,
        relax: float,
        *,
        cap: Array,
        measure: bool = False,
    ) -> tuple[Tensor, StepSums | None]:
        """Update E and U for the weights `B` (L, P, m); see `gorelm._solver.rows.Rows.step`."""
        if self._fused(problem):
            return self._fused_step(B, problem, rho, relax, cap, measure)
        problem, rho = problem.moved(self._in_rows), rho.to(self.T.dtype)
        weights, HtD = self._flat(B), torch.zeros_like(B)
        R, before = (torch.empty_like(self.E), self.E.clone()) if measure else (None, None)
        for rows, h in self._pass():
            residual = self._times(h, weights, B.shape) - self.T[rows, None]
            e_old, u_old = self.E[rows], self.U[rows]
            v = relax * residual + (1.0 - relax) * e_old + u_old
            known = v if self._observed is None else v * self._observed[rows, None]
            u = problem.multipliers(known, rho, _part(self._omega, rows))
            e = v - u
            HtD += self._product(h, e - u)
            if R is not None:
                R[rows] = residual
            # In place: a CUDA graph reads them at fixed addresses.
            e_old.copy_(e)
            u_old.copy_(u)
        if R is None or before is None:
            return HtD, None
        return HtD, self._sums(R, before, problem, cap)

    def _fused(self, problem: Problem) -> bool:
        return (
            kernels is not None
            and self.T.is_cuda
            and self.T.dtype == torch.float32
            and problem.loss == "l21"
            and self.E.shape[1] == 1
            and self._observed is None
            and not callable(self._H)
            and self._H.shape[1] % kernels.COLUMNS == 0
            and self.T.shape[1] <= 64
        )

    def _fused_step(
        self, B: Tensor, problem: Problem, rho: Tensor, relax: float, cap: Array, measure: bool
    ) -> tuple[Tensor, StepSums | None]:
        numbers = (problem.tau, rho, problem.delta, self._there(cap))
        rows = (self.T, self.E[:, 0], self.U[:, 0], self._omega)
        D, sums = kernels.step(self._H, B, *rows, numbers, relax, measure=measure)
        HtD = kernels.pull(self._H, D)[: self._n_hidden, None]
        if sums is None:
            return HtD, None
        primal, size, change, UU, UT, _, _, hidden, error = sums[:, None]
        return HtD, StepSums(primal, size, change, UU, UT, sums[5:7, None], hidden, error)

    def _sums(self, R: Tensor, before: Tensor, problem: Problem, cap: Array) -> StepSums:
        E, U, T = self.E, self.U, self.T[:, None]
        sums = [_squares(R - E), _squares(E - before), _squares(U), _squares(R + T), _squares(E)]
        sums += [_sum(U * T), *self._capped(R, problem, self._there(cap))]
        primal, change, UU, hidden, error, UT, size, plain, capped = sums
        loss: Tensor = torch.stack([plain, capped])
        return StepSums(primal, size, change, UU, UT, loss, hidden, error)

    def _capped(self, R: Tensor, problem: Problem, cap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return squared norms limited to `cap`, and the losses without and with this limit."""
        known = R if self._observed is None else R * self._observed[:, None]
        if problem.loss == "squared":
            loss = 0.5 * problem.tau.double() * _squares(known)
            return _squares(R), loss, loss
        r: Tensor = problem.residual_norms(known)
        axes = (0,) if problem.by_row else (0, 2)
        limit: Tensor = problem.over_norms(cap.to(R.dtype), self._omega)
        near = torch.minimum(r, limit.expand_as(r))
        losses = [self._huber(x, problem).sum(axes, dtype=torch.float64) for x in (r, near)]
        if known is not R:  # sizes are those of all cells, as in memory
            near = torch.minimum(problem.residual_norms(R), limit.expand_as(r))
        return (near * near).sum(axes, dtype=torch.float64), *losses

    def _there(self, cap: Array) -> Tensor:
        """Return the caps of a step on the device; a CUDA graph reads them at a fixed address."""
        if self._cap is None or self._cap[0] is not cap:
            self._cap = cap, on_device(cap, self.T)
        return self._cap[1]

    def _huber(self, r: Tensor, problem: Problem) -> Tensor:
        delta: Tensor = problem.over_norms(problem.delta, self._omega)
        q = torch.minimum(r, delta.expand_as(r))
        value = r - q + torch.where(delta > 0, 0.5 * q * (q / delta.clip(min=1e-30)), 0.0)
        return problem.over_norms(problem.tau, self._omega) * value

    def loss(self, X: Array, problem: Problem, cap: Array | None = None) -> Array:
        """Evaluate the loss at weights `X` (L, P, m), plain and capped; shape (2, P)."""
        here = problem.moved(self._in_rows)
        R = self._residuals(X)
        cap = np.full(X.shape[1], np.inf) if cap is None else cap
        _, plain, capped = self._capped(R, here, on_device(cap, self.T))
        return on_host(torch.stack([plain, capped]))

    def residual_sums(self, X: Array) -> tuple[Array, Array, Array]:
        """Return H'R (L, P, m), <R, T> (P,) and <R, R> (P,) of the residuals R = HX - T."""
        R = self._residuals(X)
        T = self.T[:, None]
        return on_host(self._summed(R)), on_host(_sum(R * T)), on_host(_squares(R))

    def corrected_dual(
        self, A: Array, which: Indices, problem: Problem, rho: Array
    ) -> tuple[Array, Array]:
        """Measure the multipliers rho U - HA of the problems `which`; see `Rows.corrected_dual`."""
        here = problem.moved(self._in_rows)
        chosen = torch.as_tensor(np.asarray(which), device=self.T.device)
        Y = on_device(rho, self.T).to(self.T.dtype)[:, None] * self.U[:, chosen]
        Y = Y - (self._residuals(A) + self.T[:, None])
        r: Tensor = here.residual_norms(Y) / here.over_norms(here.tau, self._omega)
        return on_host(r.amax(0 if here.by_row else (0, 2)).double()), on_host(_squares(Y))

    def HtU(self, which: Which) -> Array:
        """Return H'U of some problems, (L, ., m)."""
        chosen = torch.as_tensor(np.arange(self.U.shape[1])[which], device=self.T.device)
        return on_host(self._summed(self.U[:, chosen]))

    def keep(self, which: Mask) -> None:
        """Drop the state of the problems that have left the batch."""
        chosen = torch.as_tensor(np.flatnonzero(which), device=self.T.device)
        self.E, self.U = self.E[:, chosen].contiguous(), self.U[:, chosen].contiguous()

    def rescale(self, factor: Array) -> None:
        """Divide U by `factor` (P,), as a change of rho by that factor asks for."""
        self.U /= on_device(factor, self.T).to(self.U.dtype)[:, None]

    def TT(self) -> float:
        """Return the squared norm of T."""
        return float((self.T.double() ** 2).sum())

    def typical_residual(self, problem: Problem) -> float:
        """Return the geometric mean of the residual norms of B = 0."""
        return NormSummary.of(self.T, problem, self._omega).typical

    # -- products with H -------------------------------------------------------------------------

    def _pass(self, n_rows: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Yield blocks of rows with their H; one block if H is a tensor and `n_rows` is None."""
        size = n_rows or (BLOCK_ROWS if callable(self._H) else len(self.T))
        for start in range(0, len(self.T), max(size, 1)):
            rows = slice(start, min(start + size, len(self.T)))
            yield rows, self._H(rows) if callable(self._H) else self._H[rows]

    def _flat(self, B: Tensor) -> Tensor:
        return B.reshape(len(B), -1).to(self.T.dtype).contiguous()

    def _times(self, h: Tensor, weights: Tensor, shape: Sequence[int]) -> Tensor:
        return (h[:, : self._n_hidden] @ weights).reshape(len(h), *shape[1:])

    def _product(self, h: Tensor, D: Tensor) -> Tensor:
        product = h[:, : self._n_hidden].T @ D.reshape(len(D), -1)
        return product.reshape(-1, *D.shape[1:]).double()

    def _summed(self, D: Tensor) -> Tensor:
        total = torch.zeros(
            (self._n_hidden, *D.shape[1:]), dtype=torch.float64, device=self.T.device
        )
        for rows, h in self._pass(BLOCK_ROWS):
            total += self._product(h, D[rows])
        return total

    def _residuals(self, X: Array) -> Tensor:
        weights = self._flat(on_device(X, self.T))
        parts = [self._times(h, weights, X.shape) - self.T[rows, None] for rows, h in self._pass()]
        return torch.cat(parts)


class _Captured:
    """A step of one problem as a CUDA graph: one launch instead of about forty.

    There are two graphs, with and without `measure`. They read and write tensors of their own, into
    which the iterate is copied after every check. Everything else that a step reads (H, T, E, U,
    the factor) keeps its address and is only overwritten.
    """

    def __init__(self, step: Step, rows: TorchRows) -> None:
        self._step, self._rows = step, rows
        self._graphs: dict[bool, tuple[torch.cuda.CUDAGraph, StepSums | None]] = {}
        self._compiled: set[bool] = set()
        self._state: dict[str, Tensor] = {}

    def __call__(self, s: Iterate, *, measure: bool = False) -> StepSums | None:
        if not self._rows.may_capture:
            return self._step(s, measure=measure)
        if measure not in self._compiled:  # kernels must be compiled before they are captured
            self._compiled.add(measure)
            return self._step(s, measure=measure)
        if not self._state:
            self._state = {name: getattr(s, name).clone() for name in s.moved}
        for name, held in self._state.items():
            if (value := getattr(s, name)) is not held:
                held.copy_(value)
                setattr(s, name, held)
        if measure not in self._graphs:
            self._graphs[measure] = self._capture(s, measure)
        graph, sums = self._graphs[measure]
        graph.replay()
        return copy(sums)

    def _capture(self, s: Iterate, measure: bool) -> tuple[torch.cuda.CUDAGraph, StepSums | None]:
        work = copy(s)  # capturing computes nothing, but the step assigns
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        aside = torch.cuda.Stream()
        aside.wait_stream(here)
        # Not torch.cuda.graph: its garbage collection can take longer than a fit.
        with torch.cuda.stream(aside):
            graph.capture_begin()
            sums = self._step(work, measure=measure)
            for name, held in self._state.items():
                held.copy_(getattr(work, name))
            graph.capture_end()
        here.wait_stream(aside)
        return graph, sums


def held(layer: HiddenLayer, X: Tensor, omega: Tensor | None = None) -> Tensor:
    """Return H of scaled rows, times omega, with columns of zeros so that its rows are aligned."""
    width = layer.n_outputs
    if X.is_cuda and kernels is not None:
        width = -(-width // kernels.COLUMNS) * kernels.COLUMNS
    H = X.new_zeros((len(X), width)) if width > layer.n_outputs else X.new_empty((len(X), width))
    DeviceLayer(layer, X)(X, H)
    return H if omega is None else H.mul_(omega[:, None])


def _part(values: Tensor | None, rows: slice) -> Tensor | None:
    return None if values is None else values[rows]


def _sum(A: Tensor) -> Tensor:
    return A.sum((0, 2), dtype=torch.float64)


def _squares(A: Tensor) -> Tensor:
    return _sum(A * A)


if TYPE_CHECKING:
    _implements: type[DeviceRows] = TorchRows
