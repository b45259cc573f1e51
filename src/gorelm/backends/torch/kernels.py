r"""The row pass of the l2,1 loss on a CUDA device, as two kernels that read H once each.

They transfer little besides H: the first computes HB, E, U and the measured sums without storing
HB, the second sums H'(E - U) over slices of the rows. Products have the precision of float32 (three
TF32 products, or plain float32), never that of TF32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# H is padded with columns of zeros to a multiple of this, because aligned rows are read faster.
COLUMNS = 64
_PROGRAMS = 800  # about six for each multiprocessor
# Rows and columns of H in a block of each kernel: the fastest of some dozens on an H200.
_ROWS, _DEPTH, _NODES, _ROWS_PULLED = 64, 64, 256, 32
_SUMS = 16  # slots for the measured sums; nine are used


@triton.jit
def _step(
    H, B, T, E, U, D, sums, omega, tau, rho, delta, cap, relax, n_rows, n_hidden, width, m,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, SUMS: tl.constexpr,
    WEIGHTED: tl.constexpr, MEASURE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col, node = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    there = row < n_rows
    start = row.to(tl.int64) * width
    HB = tl.zeros((BLOCK, WIDTH), tl.float32)
    for first in range(0, width, DEPTH):
        h = tl.load(H + start[:, None] + (first + node)[None, :], mask=there[:, None], other=0.0)
        known = ((first + node) < n_hidden)[:, None] & (col < m)[None, :]
        b = tl.load(B + (first + node)[:, None] * m + col[None, :], mask=known, other=0.0)
        HB = tl.dot(h, b, HB, input_precision="tf32x3")
    at = row.to(tl.int64)[:, None] * m + col[None, :]
    cell = there[:, None] & (col < m)[None, :]
    t = tl.load(T + at, mask=cell, other=0.0)
    e_old = tl.load(E + at, mask=cell, other=0.0)
    residual = HB - t  # 0 where there is no cell
    v = relax * residual + (1.0 - relax) * e_old + tl.load(U + at, mask=cell, other=0.0)
    size, knee = tl.load(tau).to(tl.float32), tl.load(delta).to(tl.float32)
    k = size / tl.load(rho).to(tl.float32)
    weight = tl.full((BLOCK,), 1.0, tl.float32)
    if WEIGHTED:
        weight = tl.load(omega + row, mask=there, other=1.0)
    norm = tl.sqrt(tl.sum(v * v, axis=1))
    u = v * (k * weight / tl.maximum(norm, (k + knee) * weight))[:, None]
    e = v - u
    tl.store(E + at, e, mask=cell)
    tl.store(U + at, u, mask=cell)
    tl.store(D + at, e - u, mask=cell)
    if MEASURE:
        r = tl.sqrt(tl.sum(residual * residual, axis=1))
        near = tl.minimum(r, tl.load(cap).to(tl.float32) * weight)
        knees = knee * weight
        slope = size * weight
        q = tl.minimum(r, knees)
        loss = slope * (0.5 * q * (q / tl.maximum(knees, 1e-30)) + (r - q))
        q = tl.minimum(near, knees)
        capped = slope * (0.5 * q * (q / tl.maximum(knees, 1e-30)) + (near - q))
        out = sums + tl.program_id(0) * SUMS
        gap, change = residual - e, e - e_old
        tl.store(out + 0, tl.sum(tl.sum(gap * gap, axis=1), axis=0))
        tl.store(out + 1, tl.sum(near * near, axis=0))
        tl.store(out + 2, tl.sum(tl.sum(change * change, axis=1), axis=0))
        tl.store(out + 3, tl.sum(tl.sum(u * u, axis=1), axis=0))
        tl.store(out + 4, tl.sum(tl.sum(u * t, axis=1), axis=0))
        tl.store(out + 5, tl.sum(loss, axis=0))
        tl.store(out + 6, tl.sum(capped, axis=0))
        tl.store(out + 7, tl.sum(tl.sum(HB * HB, axis=1), axis=0))
        tl.store(out + 8, tl.sum(tl.sum(e * e, axis=1), axis=0))


@triton.jit
def _pull(
    H, D, sums, n_rows, width, m, rows_each,
    NODES: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    node = tl.program_id(0) * NODES + tl.arange(0, NODES)
    part = tl.program_id(1)
    col, offset = tl.arange(0, WIDTH), tl.arange(0, DEPTH)
    there = node < width
    total = tl.zeros((NODES, WIDTH), tl.float32)
    end = tl.minimum((part + 1) * rows_each, n_rows)
    for first in range(part * rows_each, end, DEPTH):
        row = first + offset
        known = row < end
        start = row.to(tl.int64) * width
        h = tl.load(
            H + start[:, None] + node[None, :], mask=known[:, None] & there[None, :], other=0.0
        )
        cell = known[:, None] & (col < m)[None, :]
        at = row.to(tl.int64)[:, None] * m + col[None, :]
        d = tl.load(D + at, mask=cell, other=0.0)
        total = tl.dot(tl.trans(h), d, total, input_precision="ieee")
    out = (part * width + node)[:, None] * WIDTH + col[None, :]
    tl.store(sums + out, total, mask=there[:, None])


def step(
    H: Tensor,
    B: Tensor,
    T: Tensor,
    E: Tensor,
    U: Tensor,
    omega: Tensor | None,
    numbers: tuple[Tensor, Tensor, Tensor, Tensor],
    relax: float,
    *,
    measure: bool,
) -> tuple[Tensor, Tensor | None]:
    """Update E and U (N, m) in place for weights B (L, m) in float64, of one problem.

    H may have more columns than B has rows, of zeros; `numbers` are tau, rho, delta and the cap on
    norms, in float64. Returns E - U and, if asked to `measure`, nine sums in the order of
    `gorelm._solver.rows.StepSums`, the two losses one after the other.
    """
    n_rows, m = T.shape
    D, n_blocks = torch.empty_like(E), triton.cdiv(n_rows, _ROWS)
    sums = torch.empty((n_blocks if measure else 1, _SUMS), dtype=torch.float32, device=H.device)
    _step[(n_blocks,)](
        H, B.float(), T, E, U, D, sums, T if omega is None else omega, *numbers, relax,
        n_rows, len(B), H.shape[1], m,
        _ROWS, _DEPTH, _width(m), _SUMS, omega is not None, measure, num_warps=4, num_stages=3,
    )  # fmt: skip
    return D, sums[:, :9].sum(0, dtype=torch.float64) if measure else None


def pull(H: Tensor, D: Tensor) -> Tensor:
    """Return H'D in float64, for D (N, m)."""
    n_rows, m = D.shape
    n_blocks = triton.cdiv(H.shape[1], _NODES)
    parts = max(1, min(triton.cdiv(_PROGRAMS, n_blocks), triton.cdiv(n_rows, 4 * _ROWS_PULLED)))
    rows_each = triton.cdiv(triton.cdiv(n_rows, parts), _ROWS_PULLED) * _ROWS_PULLED
    sums = torch.empty((parts, H.shape[1], _width(m)), dtype=torch.float32, device=H.device)
    _pull[(n_blocks, parts)](
        H, D, sums, n_rows, H.shape[1], m, rows_each, _NODES, _ROWS_PULLED, _width(m),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return sums[..., :m].sum(0, dtype=torch.float64)


def _width(m: int) -> int:
    return max(16, int(triton.next_power_of_2(m)))
