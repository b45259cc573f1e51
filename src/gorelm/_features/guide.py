"""Which inputs or directions a node sees, drawn at random or by what a model explains.

A layer of nodes with k inputs each draws k uniforms per node for its subset. Without a guide all
subsets of k inputs are equally probable. A `SubsetGuide` names subsets worth more nodes, such as
those that explain most of a fitted model (`explained_by_subset`). For additive nodes that see all
inputs, a `DirectionGuide` has the directions in which a fitted model changes most
(`directions_by_gradients`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gorelm._features.activations import ACTIVATIONS
from gorelm._typing import Array, Indices

if TYPE_CHECKING:
    from gorelm._features.layer import HiddenLayer

_TRUSTED = 0.9  # share of the nodes that follow the guide in the last draw of a layer
_ROUNDING = 1e-10  # of the largest eigenvalue: smaller ones count as 0
_BLOCK_CELLS = 2**20  # of the contributions (rows, subsets, targets) held at a time


@dataclass(frozen=True, eq=False)
class SubsetGuide:
    """Subsets of the inputs, and how often new nodes should see each.

    A node takes its subset from here with probability `share`, and else any subset with equal
    probability: such nodes can find what no earlier one has seen. A guide of no subsets says
    nothing: all subsets are equally probable.

    Attributes
    ----------
    subsets : ndarray of int, shape (n_subsets, k)
        Increasing input indices.
    probabilities : ndarray of shape (n_subsets,)
        Non-negative, of sum 1.
    share : float, default=0.75
        Share of the nodes that follow the guide, between 0 and 1.
    """

    subsets: Indices
    probabilities: Array
    share: float = 0.75

    def __post_init__(self) -> None:
        S, p = np.asarray(self.subsets), np.asarray(self.probabilities, dtype=np.float64)
        if S.ndim != 2 or S.dtype.kind not in "iu" or p.shape != S.shape[:1]:
            raise ValueError(
                "A guide has a table of input indices and one probability for each of its rows, "
                f"got {S.dtype} {S.shape} and {p.shape}."
            )
        if S.size and (S.min() < 0 or np.any(np.diff(S, axis=1) <= 0)):
            raise ValueError("The input indices of a subset must increase, none negative.")
        if len(p) and not (np.all(p >= 0) and abs(p.sum() - 1) < 1e-9):
            raise ValueError("The probabilities of a guide must be non-negative, of sum 1.")
        if not 0 < self.share < 1:
            raise ValueError(f"The share of a guide must lie between 0 and 1, got {self.share}.")
        object.__setattr__(self, "subsets", S.astype(np.intp))
        object.__setattr__(self, "probabilities", p)

    def trusted(self) -> Self:
        """Return the guide for a last draw: few of its nodes look for what no guide has seen."""
        return replace(self, share=_TRUSTED)

    def by_deviation(self) -> Self:
        r"""Return the guide with probabilities in proportion to deviations instead of variances.

        If n nodes leave :math:`v_S / n` of the variance of a part unexplained, then of all ways to
        share nodes among the parts :math:`n_S \propto \sqrt{v_S}` leaves least. With few rows,
        much of what is explained is noise, and the variances themselves are better: noise, spread
        over many subsets, gets fewer nodes.
        """
        root = np.sqrt(self.probabilities)
        return replace(self, probabilities=root / (root.sum() or 1.0))

    @classmethod
    def pooled(cls, guides: Sequence[SubsetGuide]) -> Self:
        """Return the average of several guides: of few nodes, one alone is mostly chance."""
        every = np.concatenate([guide.subsets for guide in guides])
        subsets, which = np.unique(every, axis=0, return_inverse=True)
        p = np.bincount(
            which.ravel(),
            np.concatenate([guide.probabilities for guide in guides]),
            minlength=len(subsets),
        )
        return cls(subsets, p / (p.sum() or 1.0))


@dataclass(frozen=True, eq=False)
class DirectionGuide:
    r"""Directions in which nodes that see all inputs should look: those in which a model changes.

    A node's random direction q becomes :math:`a = R q`, with the root :math:`R = M^{1/2}` of the
    mean outer product of a fitted model's gradients,

    .. math:: M = \sum_j \sum_i w_i \, \nabla f_j(x_i) \, \nabla f_j(x_i)',

    in units in which the rows are as long as before, on average: the nodes see their inputs on the
    same scale.

    Attributes
    ----------
    root : ndarray of shape (n_features, n_features)
        R, symmetric.
    """

    root: Array


def directions_by_gradients(
    layer: HiddenLayer, X: Array, coef: Array, sample_weight: Array
) -> DirectionGuide | None:
    """Return the directions in which a regression on a layer's outputs changes; None: in none.

    Parameters
    ----------
    layer : HiddenLayer
        Additive nodes that see all inputs, with an activation that has a slope.
    X : array (N, n_features)
        Rows at which the gradients are taken.
    coef : array (n_outputs, n_targets)
        Output weights, for targets on one scale; those of directly linked inputs first.
    sample_weight : array (N,)
        Weights of the rows.
    """
    slope = ACTIVATIONS[layer.activation].slope
    if slope is None or layer.subsets is not None:
        raise ValueError(
            f"{layer.activation!r} nodes, or nodes that see few inputs, have no slope."
        )
    n_linked, omega = len(layer.inputs), np.sqrt(sample_weight)[:, None]
    slopes = omega * slope(X @ layer.A.T + layer.b)
    M = np.zeros((layer.n_features, layer.n_features))
    for linear, weights in zip(coef[:n_linked].T, coef[n_linked:].T, strict=True):
        gradients = slopes @ (weights[:, None] * layer.A)
        gradients[:, layer.inputs] += omega * linear
        M += gradients.T @ gradients
    s, V = np.linalg.eigh(M)
    # The root of what is rounding would differ from one machine to the other.
    root = (V * np.sqrt(np.where(s > _ROUNDING * s[-1], s, 0.0))) @ V.T
    before, after = (np.vdot(omega * x, omega * x) for x in (X, X @ root))
    return DirectionGuide(root * np.sqrt(before / after)) if after > 0 else None


def draw_subsets(U: Array, n_features: int, guide: SubsetGuide | None = None) -> Indices:
    """Return a subset of the inputs for every row of uniforms, its indices increasing.

    Parameters
    ----------
    U : array (n_nodes, k)
        Uniform on [0, 1); k is the number of inputs of a node.
    n_features : int
        Number of inputs to choose from.
    guide : SubsetGuide, optional
        Subsets to prefer.
    """
    if guide is None or not len(guide.subsets):
        return _any_subsets(U, n_features)
    if guide.subsets.shape[1] != U.shape[1] or guide.subsets.max() >= n_features:
        raise ValueError(
            f"The guide has subsets of {guide.subsets.shape[1]} inputs up to number "
            f"{guide.subsets.max()}; the layer's nodes see {U.shape[1]} of {n_features}."
        )
    # The first uniform decides between the two, and what is left of it is a uniform again: a node
    # takes as many of them with a guide as without.
    first = U[:, 0]
    guided = first < guide.share
    cdf = np.cumsum(guide.probabilities)
    left = np.where(guided, first / guide.share, (first - guide.share) / (1 - guide.share))
    at = np.searchsorted(cdf, left * cdf[-1], side="right")
    free = _any_subsets(np.column_stack([left, U[:, 1:]]), n_features)
    return np.where(guided[:, None], guide.subsets[at], free)


def _any_subsets(U: Array, n_features: int) -> Indices:
    """Return subsets of equal probability by Floyd's algorithm, one uniform for each member."""
    subsets = np.empty(U.shape, dtype=np.intp)
    for r in range(U.shape[1]):
        top = n_features - U.shape[1] + r
        choice = (U[:, r] * (top + 1)).astype(np.intp)  # u < 1 in floats makes u c < c
        taken = (subsets[:, :r] == choice[:, None]).any(axis=1)
        subsets[:, r] = np.where(taken, top, choice)
    return np.sort(subsets, axis=1)


def explained_by_subset(
    layer: HiddenLayer,
    H_nodes: Array,
    coef: Array,
    sample_weight: npt.ArrayLike | None = None,
) -> SubsetGuide:
    """Return the subsets of a fitted layer, each as probable as what its nodes explain.

    That is the variance over the rows of the part of the outputs that the subset's nodes make,
    h_S B_S, summed over the targets. Subsets that explain nothing are left out.

    Parameters
    ----------
    layer : HiddenLayer
        Its nodes see few inputs.
    H_nodes : array (N, n_nodes)
        Outputs of the nodes, without directly linked inputs.
    coef : array (n_nodes, n_targets)
        Their output weights, for targets on one scale.
    sample_weight : array-like of shape (N,), optional
        A weight of 2 is the row written twice, a weight of 0 the row left out.
    """
    if layer.subsets is None:
        raise ValueError("All nodes of this layer see all inputs: it has no subsets to compare.")
    n_nodes = layer.n_nodes
    if H_nodes.shape[1:] != (n_nodes,) or coef.ndim != 2 or len(coef) != n_nodes:
        raise ValueError(
            f"H_nodes and coef must have a column and a row for each of {n_nodes} nodes, got "
            f"{H_nodes.shape} and {coef.shape}."
        )
    subsets, group = np.unique(layer.subsets, axis=0, return_inverse=True)
    n_subsets, m = len(subsets), coef.shape[1]
    w = np.ones(len(H_nodes)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    # In units of the largest weight, so that no square overflows.
    unit = float(np.abs(coef).max(initial=0.0)) or 1.0
    # A sparse matrix from nodes to (subset, target) pairs sums the nodes of each pair.
    pairs = group.reshape(-1, 1) * m + np.arange(m)
    nodes = np.broadcast_to(np.arange(n_nodes)[:, None], pairs.shape)
    weights = sparse.csr_array(
        ((coef / unit).ravel(), (pairs.ravel(), nodes.ravel())), shape=(n_subsets * m, n_nodes)
    )
    mean = w @ H_nodes / w.sum()
    squares = np.zeros(n_subsets * m)
    n_rows = max(_BLOCK_CELLS // max(n_subsets * m, n_nodes, 1), 1)
    for start in range(0, len(H_nodes), n_rows):
        centred = np.ascontiguousarray((H_nodes[start : start + n_rows] - mean).T)
        squares += (weights @ centred) ** 2 @ w[start : start + n_rows]
    # What is left of a constant part after its mean is rounding.
    squares[squares <= (1e-14 * (abs(weights) @ np.abs(mean))) ** 2 * w.sum()] = 0.0
    explained = squares.reshape(n_subsets, m).sum(axis=1)
    some = explained > 0
    return SubsetGuide(subsets[some], explained[some] / (explained.sum() or 1.0))
