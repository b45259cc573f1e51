r"""Which inputs act together on the targets, told before any node is drawn.

With independent inputs, a function is a sum of parts :math:`f_S` of few inputs each, every part
orthogonal to all functions of fewer of its inputs (the functional analysis of variance). Products
of orthonormal polynomials :math:`\varphi` of each input in S are such functions. A product's
correlation with the residuals r of a regression on what is already found,

.. math:: z = \frac{\sum_i w_i \varphi(x_i) r_i}{\bigl(\sum_i w_i \varphi(x_i)^2 r_i^2\bigr)^{1/2}},

is about standard normal where S has no part, so that :math:`\sum z^2` over the products of S is
about :math:`\chi^2`: what is beyond tells how much variance the part explains. Single inputs are
found first, then pairs, then triples. The polynomials are of ranks, so that no far value decides.
Weights count as numbers of equal rows; where they mean how exact a row is, too many sets are found.
With dependent inputs the figures are less exact, and good enough to guide draws of nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Self

import numpy as np
from scipy import linalg, special

from gorelm._features.guide import SubsetGuide
from gorelm._typing import Array, Indices

DEGREE = 3  # of the polynomials of an input
MOST_INPUTS = 3  # that are looked for together
BY_CHANCE = 0.1  # sets of each size that may be found where there is nothing, on average
WORK = 4e8  # multiplications for the sets of one size, at most; with more, some rows are used,
FEWEST_ROWS = 1000  # and with fewer rows than these the sets are left out
MOST_PRODUCTS = 1000  # in a regression on what is found; and at most a part of the rows:
ROWS_PER_PRODUCT = 3
RIDGE = 1e-3  # in units of the weight of all rows
ONCE = 0.1  # weights are divided by this quantile of them, and then are numbers of equal rows


def acting_together(X: Array, T: Array, sample_weight: Array) -> dict[int, SubsetGuide]:
    """Return sets of one, two and three inputs whose parts explain the targets, by their size.

    Sizes of which no set is found, or which would take too long, are left out. Sets are as probable
    as the deviation of their part, by which nodes are best shared (`SubsetGuide.by_deviation`).

    Parameters
    ----------
    X : array (N, d)
        Inputs.
    T : array (N, m)
        Targets on one scale, all known.
    sample_weight : array (N,)
        Positive weights of the rows.
    """
    if len(X) < 2:
        return {}
    w = sample_weight / np.quantile(sample_weight, ONCE, method="lower")
    basis = _Basis.of(X, w)
    residuals = T - w @ T / w.sum()
    found: dict[int, SubsetGuide] = {}
    chosen: list[tuple[float, Indices]] = []
    # Nodes that see all inputs have no set to choose.
    for size in range(1, min(MOST_INPUTS, len(basis.inputs), X.shape[1] - 1) + 1):
        n_rows = int(WORK / (basis.work(size) * T.shape[1]))
        if n_rows < min(len(X), FEWEST_ROWS):
            break
        if chosen:
            residuals = _left_by(basis, chosen, T, w)
        some = np.linspace(0, len(X) - 1, min(n_rows, len(X))).astype(np.intp)
        subsets, explained = _explained(basis.of_rows(some), residuals[some], w[some], size)
        if len(subsets):
            found[size] = SubsetGuide(subsets, explained / explained.sum()).by_deviation()
            chosen += zip(explained.tolist(), subsets, strict=True)
    return found


@dataclass(frozen=True)
class _Basis:
    """Orthonormal polynomials of the ranks of each input that is not constant."""

    inputs: Indices
    V: Array  # (N, n_polynomials)
    starts: Indices  # of the polynomials of an input

    @classmethod
    def of(cls, X: Array, w: Array) -> Self:
        """Make the polynomials."""
        every = [_polynomials(x, w) for x in X.T]
        sizes = np.array([V.shape[1] for V in every])
        inputs = np.flatnonzero(sizes)
        return cls(inputs, np.hstack(every), np.cumsum(sizes[inputs]) - sizes[inputs])

    def of_rows(self, rows: Indices) -> Self:
        """Return the same for some rows."""
        return replace(self, V=self.V[rows])

    def work(self, size: int) -> float:
        """Return how much work all sets of this size are, for a row and a target."""
        n = max(self.V.shape[1], 1)
        return float(n**size / special.factorial(max(size - 1, 1)))

    def products(self, subset: Indices) -> Array:
        """Return all products of a polynomial of each of some inputs."""
        found = np.ones((len(self.V), 1))
        for k in np.searchsorted(self.inputs, subset):
            of_input = np.split(self.V, self.starts[1:], axis=1)[k]
            found = (found[:, :, None] * of_input[:, None, :]).reshape(len(found), -1)
        return found


def _polynomials(x: Array, w: Array) -> Array:
    """Return polynomials of the ranks of one input; fewer, if it has few values."""
    values, which = np.unique(x, return_inverse=True)
    counts = np.bincount(which, w)
    ranks = (2 * np.cumsum(counts) - counts) / w.sum() - 1  # from -1 to 1, ties in their middle
    V = np.polynomial.legendre.legvander(ranks[which], min(DEGREE, len(values) - 1))
    root = np.sqrt(w / w.sum())[:, None]
    return np.asarray(linalg.qr(root * V, mode="economic")[0][:, 1:] / root)


def _left_by(basis: _Basis, chosen: Sequence[tuple[float, Indices]], T: Array, w: Array) -> Array:
    """Return what a regression leaves, on products of the sets that explain most."""
    most = min(int(w.sum() / ROWS_PER_PRODUCT), MOST_PRODUCTS)
    columns: list[Array] = [np.ones((len(T), 1))]
    for _, subset in sorted(chosen, key=lambda part: -part[0]):
        columns.append(basis.products(subset))
        most -= columns[-1].shape[1]
        if most < 0:
            columns.pop()
            break
    F = np.hstack(columns)
    weighted = w[:, None] * F
    gram = F.T @ weighted
    gram[np.diag_indices_from(gram)] += RIDGE * w.sum()
    return np.asarray(T - F @ linalg.solve(gram, weighted.T @ T, assume_a="pos"))


def _explained(basis: _Basis, R: Array, w: Array, size: int) -> tuple[Indices, Array]:
    """Return the sets of a size that explain some of the residuals, and how much of them."""
    subsets, df, chi2 = (_of_one if size == 1 else _of_more)(basis, R, w, size)
    limit = special.chdtri(df, BY_CHANCE / chi2.size)
    variance = w @ R**2 / w.sum()
    each = np.where(chi2 > limit, (chi2 - df) * variance[:, None], 0.0).sum(axis=0)
    return basis.inputs[subsets[each > 0]], each[each > 0]


def _of_one(basis: _Basis, R: Array, w: Array, size: int) -> tuple[Indices, Indices, Array]:
    """Return the single inputs, their degrees of freedom, and chi2 (m, sets)."""
    wR = w[:, None] * R
    z, squares = wR.T @ basis.V, (wR * R).T @ basis.V**2
    sizes = np.diff([*basis.starts, basis.V.shape[1]])
    chi2 = np.add.reduceat(_ratio(z**2, squares), basis.starts, axis=1)
    return np.arange(len(sizes))[:, None], sizes, chi2


def _of_more(basis: _Basis, R: Array, w: Array, size: int) -> tuple[Indices, Indices, Array]:
    """Return the sets of two or more inputs, their degrees of freedom, and chi2 (m, sets)."""
    sizes = np.diff([*basis.starts, basis.V.shape[1]])
    subsets, chi2 = [], []
    for head in combinations(range(len(sizes)), size - 2):
        # All sets that begin with these inputs.
        begin = head[-1] + 1 if head else 0
        starts = basis.starts[begin:]
        if len(starts) < 2:
            continue
        V = basis.V[:, starts[0] :]
        V2, (a, b) = V**2, np.triu_indices(len(starts), 1)
        of_head = np.zeros((R.shape[1], len(a)))
        for factor in basis.products(basis.inputs[list(head)]).T:
            for j, r in enumerate(R.T):
                first = factor * r
                z = ((w * first)[:, None] * V).T @ V
                ratio = _ratio(z**2, ((w * first**2)[:, None] * V2).T @ V2)
                starting = starts - starts[0]
                sums = np.add.reduceat(np.add.reduceat(ratio, starting, axis=0), starting, axis=1)
                of_head[j] += sums[a, b]
        subsets.append(np.column_stack([np.tile(head, (len(a), 1)), begin + a, begin + b]))
        chi2.append(of_head)
    every = np.concatenate(subsets).astype(np.intp)
    return every, np.prod(sizes[every], axis=1), np.concatenate(chi2, axis=1)


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b > 0)
