"""Random hidden layers of extreme learning machines: draw, transform, grow, keep.

A layer maps the rows x of X (N, n_features) to the rows h of H (N, n_outputs):

    additive nodes   h_j = act(a_j·x + b_j)
    radial nodes     h_j = act(‖x − c_j‖², w_j) or act(‖x − c_j‖₁, w_j)

where x may be all inputs, or for every node some k of them that were drawn with it.

Nothing in a layer is trained. Every node is a fixed number of uniform draws from one seed, so a
layer is reproduced, extended and stored as a few numbers and arrays.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.spatial.distance import cdist
from scipy.special import ndtri
from sklearn.utils import check_random_state

from gorelm._features.activations import ACTIVATIONS, Activation
from gorelm._features.guide import DirectionGuide, SubsetGuide, draw_subsets
from gorelm._typing import Array, Indices, Inputs, RandomState

__all__ = ["ACTIVATIONS", "HiddenLayer", "RowSource"]

# Bytes of H worked on at a time. For 64 inputs and 1000 outputs 64 to 256 rows
# per block were equally fast and the whole of H at once 1.5 times slower. The floor keeps the
# matrix product efficient for wide layers, the cap keeps a block of X small for narrow ones.
_BLOCK_BYTES = 2**20
_MIN_ROWS, _MAX_ROWS = 64, 4096

_N_PAIRS = 256  # of rows, for the typical distance between them


@dataclass(frozen=True)
class RowSource:
    """Rows that are not in one array, some of which can be fetched as centres.

    Attributes
    ----------
    n_rows : int
        Their number.
    take : callable
        Returns the rows at some indices, in their order, dense.
    """

    n_rows: int
    take: Callable[[Indices], Array]


@dataclass(frozen=True, eq=False)
class HiddenLayer:
    r"""A drawn hidden layer; make one with :meth:`draw`.

    Additive nodes are act(a·x + b), with

    - sigmoid 1/(1 + e^{−z}), tanh, relu max(z, 0), leaky_relu max(z, z/100),
      softplus log(1 + e^z), hardlim (1 where z >= 0, else 0), sine, cosine.

    Radial nodes have a row of the training inputs as centre c, and a width w:

    - gaussian exp(−‖x − c‖²/w²), multiquadric sqrt(‖x − c‖² + w²), laplace exp(−‖x − c‖₁/w);
    - w = f·d/weight_scale, with f log-uniform on [1/2, 2) and d the median distance between
      random pairs of distinct rows (1 if there are none).

    A node that sees k inputs only has k weights, or a centre and a width in those k inputs.

    Attributes
    ----------
    activation : str
        A key of ``ACTIVATIONS``.
    weights : {"uniform", "normal"}
        Distribution of a and b.
    weight_scale : float
        Factor on a and b; for radial nodes on 1/w. Larger is sharper.
    n_features : int
        Number of inputs n.
    seed : int
        All nodes, drawn and to come, follow from it.
    n_drawn : int
        Number of nodes drawn so far, removed ones included.
    inputs : ndarray of int
        The inputs that are outputs too (the direct link).
    A : ndarray of shape (n_nodes, n_features) or (n_nodes, k), float64
        The directions a, or the centres c; with `subsets`, in the inputs that the node sees.
    b : ndarray of shape (n_nodes,), float64
        The biases b, or the widths w.
    subsets : ndarray of int of shape (n_nodes, k), or None
        The inputs that each node sees, increasing; None: all.
    """

    activation: str
    weights: str
    weight_scale: float
    n_features: int
    seed: int
    n_drawn: int
    inputs: Indices
    A: Array
    b: Array
    subsets: Indices | None = None  # not in pickles and files of earlier versions

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            close = difflib.get_close_matches(str(self.activation), ACTIVATIONS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            known = ", ".join(ACTIVATIONS)
            raise ValueError(f"Unknown activation {self.activation!r}; known: {known}.{hint}")
        if self.weights not in ("uniform", "normal"):
            raise ValueError(f"weights must be 'uniform' or 'normal', got {self.weights!r}.")
        if not 0 < self.weight_scale < np.inf:
            raise ValueError(f"weight_scale must be positive and finite, got {self.weight_scale}.")
        if self.n_features < 1:
            raise ValueError(f"n_features must be at least 1, got {self.n_features}.")

    @classmethod
    def draw(
        cls,
        n_hidden: int,
        n_features: int,
        *,
        activation: str = "sigmoid",
        weights: str = "uniform",
        weight_scale: float = 1.0,
        direct_link: bool = False,
        random_state: RandomState = None,
        X: Inputs | RowSource | None = None,
        sample_weight: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        n_inputs: int | None = None,
        guide: SubsetGuide | DirectionGuide | None = None,
    ) -> HiddenLayer:
        """Draw a layer of `n_hidden` nodes.

        Parameters
        ----------
        n_hidden : int
            Number of nodes; 0 is allowed with a direct link.
        n_features : int
            Number of inputs.
        activation : str, default="sigmoid"
            A key of ``ACTIVATIONS``.
        weights : {"uniform", "normal"}, default="uniform"
            a and b from U[−1, 1) or N(0, 1), times `weight_scale`. The bias of sine and cosine
            nodes is uniform on [0, 2π) in either case.
        weight_scale : float, default=1.0
            Larger is sharper: multiplies a and b, divides the widths of radial nodes.
        direct_link : bool, default=False
            The inputs are outputs too.
        random_state : int, RandomState or None
            Where the layer's one seed comes from.
        X, sample_weight, offset
            The training inputs, for radial nodes; see :meth:`grow`.
        n_inputs : int, optional
            Number of inputs that each node sees, drawn with it; None, or at least `n_features`:
            all.
        guide : SubsetGuide or DirectionGuide, optional
            Which inputs, or directions, nodes should see; see :meth:`grow`.
        """
        n_hidden, n_features = index(n_hidden), index(n_features)
        if n_hidden < (0 if direct_link else 1):
            raise ValueError(
                f"n_hidden must be at least 1 (or 0 with direct_link=True), got {n_hidden}."
            )
        n_seen = n_features if n_inputs is None else min(index(n_inputs), n_features)
        if n_inputs is not None and n_inputs < 1:
            raise ValueError(f"n_inputs must be at least 1, or None for all, got {n_inputs}.")
        empty = cls(
            activation=activation,
            weights=weights,
            weight_scale=float(weight_scale),
            n_features=n_features,
            seed=int(check_random_state(random_state).randint(np.iinfo(np.int32).max)),
            n_drawn=0,
            inputs=np.arange(n_features if direct_link else 0),
            A=np.empty((0, n_seen)),
            b=np.empty(0),
            subsets=np.empty((0, n_seen), dtype=np.intp) if n_seen < n_features else None,
        )
        if n_hidden == 0:
            return empty
        return empty.grow(n_hidden, X=X, sample_weight=sample_weight, offset=offset, guide=guide)

    @property
    def n_nodes(self) -> int:
        """Number of random nodes."""
        return len(self.b)

    @property
    def n_outputs(self) -> int:
        """Number of columns of H: directly linked inputs and random nodes."""
        return len(self.inputs) + len(self.b)

    @property
    def dtype(self) -> np.dtype[np.floating]:
        """Of the stored arrays; H has the dtype of X."""
        return self.A.dtype

    def grow(
        self,
        n_new: int,
        X: Inputs | RowSource | None = None,
        sample_weight: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        guide: SubsetGuide | DirectionGuide | None = None,
    ) -> HiddenLayer:
        """Return a layer with `n_new` more nodes after this one's, which stay bit-identical.

        Growing by p and then by q gives the same layer as growing by p + q (with the same guide).

        Parameters
        ----------
        n_new : int
            Number of nodes to add.
        X : ndarray, scipy.sparse of shape (N, n_features) or RowSource, optional
            Rows to draw centres from; only radial nodes need it, and look at it. Which rows these
            are depends on their number and weights alone.
        sample_weight : array-like of shape (N,), optional
            A weight of 2 is the row written twice, a weight of 0 the row left out.
        offset : array-like of shape (n_features,), optional
            The rows are those of X + offset, as in :meth:`transform`.
        guide : SubsetGuide or DirectionGuide, optional
            Which inputs the new nodes should see, for nodes that see few, or in which directions
            additive nodes that see all should look; None: all are equally probable.
        """
        n_new = index(n_new)
        if n_new < 1:
            raise ValueError(f"n_new must be at least 1, got {n_new}.")
        act = ACTIVATIONS[self.activation]
        n_drawn = self.n_drawn + n_new
        # A node is a row of uniforms, so n + k nodes begin with the n; RandomState, because its
        # streams are the same in every version of NumPy.
        n_seen = self.A.shape[1]
        n_choices = 0 if self.subsets is None else n_seen
        per_node = n_choices + (2 if act.radial else n_seen + 1)
        U = np.random.RandomState(self.seed).random_sample((n_drawn, per_node))[self.n_drawn :]
        subsets = None
        if self.subsets is not None:
            if isinstance(guide, DirectionGuide):
                raise ValueError("Directions are for nodes that see all inputs; these see few.")
            subsets = draw_subsets(U[:, :n_choices], self.n_features, guide)
            U = U[:, n_choices:]
        elif isinstance(guide, SubsetGuide):
            raise ValueError("A guide is for nodes that see few inputs; these see all.")
        if act.radial and isinstance(guide, DirectionGuide):
            raise ValueError("Directions are for additive nodes; these are radial.")
        if act.radial:
            if X is None:
                raise ValueError(
                    f"{self.activation!r} nodes have rows of the data as centres: X is needed."
                )
            if not isinstance(X, RowSource):
                X = _as_rows(X, self.n_features)
            n_rows = X.n_rows if isinstance(X, RowSource) else X.shape[0]
            cdf = _cumulative(sample_weight, n_rows)
            A = _sample(X, cdf, U[:, 0]) + self._offset(offset)
            if subsets is not None:
                A = np.take_along_axis(A, subsets, axis=1)
            b = 4 ** (U[:, 1] - 0.5) * _typical_distance(X, cdf, act, subsets) / self.weight_scale
        else:
            # The inverse distribution function; 0, which ndtri sends to −inf, stands for 2^−54.
            Q = 2 * U - 1 if self.weights == "uniform" else ndtri(np.maximum(U, 2.0**-54))
            A = self.weight_scale * Q[:, :-1]
            if isinstance(guide, DirectionGuide):
                A = A @ guide.root
            b = 2 * np.pi * U[:, -1] if act.periodic else self.weight_scale * Q[:, -1]
        if self.subsets is not None and subsets is not None:
            subsets = np.concatenate([self.subsets, subsets])
        return replace(
            self,
            n_drawn=n_drawn,
            A=np.concatenate([self.A, A]),
            b=np.concatenate([self.b, b]),
            subsets=subsets,
        )

    def keep(self, columns: npt.ArrayLike) -> HiddenLayer:
        """Return the layer with only some outputs, in their order; the others are never redrawn.

        Parameters
        ----------
        columns : array-like
            A boolean mask of length n_outputs, or increasing indices of columns of H. All may go.

        Returns
        -------
        HiddenLayer
            ``keep(columns).transform(X)`` is ``transform(X)[:, columns]``, to rounding.
        """
        given = np.asarray(columns)
        if given.dtype == bool:
            if given.shape != (self.n_outputs,):
                raise ValueError(
                    f"The mask has shape {given.shape}, the layer {self.n_outputs} outputs."
                )
            given = np.flatnonzero(given)
        elif given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError("columns must be a boolean mask or a list of column indices.")
        kept = given.astype(np.intp)
        # Another order could not be had: the inputs come before the nodes.
        if kept.size and (kept[0] < 0 or kept[-1] >= self.n_outputs or np.any(np.diff(kept) <= 0)):
            raise ValueError(f"Column indices must increase and lie in [0, {self.n_outputs}).")
        n_inputs = len(self.inputs)
        nodes = kept[kept >= n_inputs] - n_inputs
        return replace(
            self,
            inputs=self.inputs[kept[kept < n_inputs]],
            A=self.A[nodes],
            b=self.b[nodes],
            subsets=None if self.subsets is None else self.subsets[nodes],
        )

    def scattered(self, values: Array) -> Array:
        """Return numbers of each node's inputs with 0 for the inputs that it does not see.

        Parameters
        ----------
        values : ndarray of the shape of `A`
            ``A``, or other numbers.

        Returns
        -------
        ndarray of shape (n_nodes, n_features)
        """
        if self.subsets is None:
            return values
        out = np.zeros((self.n_nodes, self.n_features), values.dtype)
        np.put_along_axis(out, self.subsets, values, axis=1)
        return out

    def transform(
        self, X: Inputs, offset: npt.ArrayLike | None = None, out: Array | None = None
    ) -> Array:
        """Compute H for the rows of X + offset.

        Parameters
        ----------
        X : ndarray or scipy.sparse of shape (N, n_features)
            The nodes see inputs beyond max**0.48 of the dtype (1e148; 3e18 in float32) as that
            value: their squares or sums would overflow.
        offset : array-like of shape (n_features,), optional
            Added to every row, without forming X + offset: a sparse X stays sparse.
        out : ndarray of shape (N, n_outputs), optional
            Where to write H.

        Returns
        -------
        ndarray of shape (N, n_outputs)
            `out` if given; else a new array, float32 if X is, and float64 otherwise.
        """
        X = _as_rows(X, self.n_features)
        offset = self._offset(offset)
        dtype = _precision(X)
        shape = (X.shape[0], self.n_outputs)
        if out is None:
            out = np.empty(shape, dtype)
        elif out.shape != shape or out.dtype != dtype:
            raise ValueError(f"out must be {dtype} {shape}, got {out.dtype} {out.shape}.")

        act = ACTIVATIONS[self.activation]
        # Differences of squares lose half the digits: distances are float64 for any X.
        inner = np.dtype(np.float64) if act.radial else dtype
        M, shift = self._products(act, offset, inner, sparse_rows=sparse.issparse(X))

        n_inputs = len(self.inputs)
        n_rows = _BLOCK_BYTES // (inner.itemsize * max(self.n_nodes, 1))
        n_rows = min(max(n_rows, _MIN_ROWS), _MAX_ROWS)
        if act.cityblock:  # which makes sparse rows dense
            n_rows = min(n_rows, max(_BLOCK_BYTES // (8 * self.n_features), 1))
        # Nodes are computed where they belong, or else in a buffer that stays in cache.
        in_place = n_inputs == 0 and inner == dtype and out.flags.c_contiguous
        buffer = np.empty((0 if in_place else min(n_rows, shape[0]), self.n_nodes), inner)
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, shape[0], n_rows):
                x, block = X[start : start + n_rows], out[start : start + n_rows]
                # The inputs come first, so that growing the layer only ever appends columns.
                if n_inputs:
                    block[:, :n_inputs] = _dense(x[:, self.inputs]) + offset[self.inputs]
                Z = block if in_place else buffer[: len(block)]
                x = _clipped(x, dtype).astype(inner, copy=False)
                if act.cityblock and self.subsets is not None:
                    _few_distances(_dense(x), self.subsets, M, Z)
                elif act.cityblock:
                    Z[...] = cdist(_dense(x), M, "cityblock")
                elif act.radial and self.subsets is not None:
                    _multiply(_with_squares(x), M, Z)
                else:
                    _multiply(x, M, Z)
                Z += shift
                if act.radial and not act.cityblock:
                    if self.subsets is None:
                        Z += _squared_norms(x)[:, None]
                    np.maximum(Z, 0, out=Z)
                act.apply(Z, self.b) if act.radial else act.apply(Z)
                if not in_place:
                    block[:, n_inputs:] = Z
        return out

    def _products(
        self, act: Activation, offset: Array, inner: np.dtype[np.floating], *, sparse_rows: bool
    ) -> tuple[Inputs, Array]:
        """Return what rows are multiplied by (or compared with), and what is added to that.

        Of nodes with few inputs that are compared by squares it is the rows [x², x] that are
        multiplied.
        """
        M: Array
        shift: Array
        S = self.subsets
        # A layer may come from an untrusted file, and SciPy writes to any index without a check.
        if S is not None and (
            S.shape != self.A.shape or S.min(initial=0) < 0 or S.max(initial=0) >= self.n_features
        ):
            raise ValueError(
                f"subsets must hold input indices in [0, {self.n_features}) in the shape of A."
            )
        seen = offset if S is None else offset[S]
        if act.cityblock:  # ‖x + offset − c‖₁ = ‖x − c'‖₁  with c' = c − offset
            M, shift = self.A - seen, np.zeros(1)
        elif act.radial:  # ‖x + offset − c‖² = ‖x‖² − 2 x·c' + ‖c'‖²  with the same c'
            C = self.A - seen
            M, shift = -2 * C.T, _squared_norms(C)
        elif S is None:  # a·(x + offset) + b = a·x + (b + a·offset)
            M, shift = self.A.T, self.b + self.A @ offset
        else:
            M, shift = self.A.T, self.b + (self.A * seen).sum(axis=1)
        shift = np.asarray(shift, inner)
        if S is None or act.cityblock:
            return np.ascontiguousarray(M, inner), shift
        width, values = self.n_features, M.T
        if act.radial:
            S, values = np.hstack([S, width + S]), np.hstack([np.ones_like(values), values])
            width *= 2
        return _scattered(S, np.asarray(values, inner), width, sparse_rows=sparse_rows), shift

    def _offset(self, offset: npt.ArrayLike | None) -> Array:
        if offset is None:
            return np.zeros(self.n_features)
        row = np.asarray(offset, dtype=np.float64)
        if row.shape != (self.n_features,):
            raise ValueError(
                f"offset has shape {row.shape}, the layer takes {self.n_features} features."
            )
        return row


def _as_rows(X: Inputs, n_features: int) -> Inputs:
    """X as an array or a CSR matrix, its number of columns checked."""
    X = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"X must have 2 dimensions, got {X.ndim}.")
    if X.shape[1] != n_features:
        raise ValueError(f"X has {X.shape[1]} features, the layer takes {n_features} features.")
    return X


def _precision(X: Inputs) -> np.dtype[np.floating]:
    return np.dtype("f4") if X.dtype == np.float32 else np.dtype("f8")


def _dense(x: Inputs) -> Array:
    return x if isinstance(x, np.ndarray) else x.toarray()


def _clipped(x: Inputs, dtype: np.dtype[np.floating]) -> Inputs:
    """Return a copy of x as `dtype`, within the range whose squares can be summed."""
    limit = np.finfo(dtype).max ** 0.48
    if isinstance(x, np.ndarray):
        return np.clip(x.astype(dtype, copy=False), -limit, limit)
    x = x.astype(dtype)  # a copy: a slice of a CSR matrix may share its data with X
    np.clip(x.data, -limit, limit, out=x.data)
    return x


def _squared_norms(x: Inputs) -> Array:
    if isinstance(x, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", x, x))
    return np.asarray(x.multiply(x).sum(axis=1), dtype=np.float64).ravel()


def _scattered(S: Indices, values: Array, width: int, *, sparse_rows: bool) -> Inputs:
    """Return the matrix (width, n_nodes) with column j's `values` at S[j]; sparse where faster."""
    n_nodes, k = S.shape
    starts = k * np.arange(n_nodes + 1)
    M = sparse.csr_array((values.ravel(), S.ravel(), starts), shape=(n_nodes, width))
    # Measured with one thread, for 1000 nodes and 2000 rows in float64 (and float32): a dense
    # product took 0.08 (0.04) ms for each input, a sparse one 2.5 + 0.45 k (1.7 + 0.3 k) ms. With
    # 5 % of the cells of X stored a dense one took 0.025 (0.013) ms for each input, a sparse one
    # about 1 k + 2 ms. Gathering the inputs of each node was slower than the faster of the two.
    if width > (64 * k if sparse_rows else 32 + 8 * k):
        return sparse.csr_array(M.T) if sparse_rows else M.T
    return np.ascontiguousarray(M.toarray().T)


def _multiply(x: Inputs, M: Inputs, out: Array) -> None:
    """Write x @ M."""
    if isinstance(x, np.ndarray) and isinstance(M, np.ndarray):
        np.matmul(x, M, out=out)
    elif isinstance(x, np.ndarray):
        # SciPy adds multiples of the rows of the right factor: these must be long and contiguous.
        out[...] = (M.T @ np.ascontiguousarray(x.T)).T
    else:
        out[...] = _dense(x @ M)


def _with_squares(x: Inputs) -> Inputs:
    """Return [x², x]."""
    if isinstance(x, np.ndarray):
        return np.hstack([x * x, x])
    return sparse.csr_array(sparse.hstack([x.multiply(x), x], format="csr"))


def _few_distances(x: Array, S: Indices, C: Array, out: Array) -> None:
    """Write the sums over r of |x[:, S[:, r]] − C[:, r]|."""
    # Whole rows of x' are copied faster than cells of x are picked: measured 3 to 4 times.
    columns = np.ascontiguousarray(x.T)
    total, term = np.empty((2, len(S), len(x)))
    for r in range(S.shape[1]):
        part = term if r else total
        np.take(columns, S[:, r], axis=0, out=part, mode="clip")  # "raise" would copy `part`
        part -= C[:, r, None]
        np.abs(part, out=part)
        if r:
            total += term
    out[...] = total.T


def _cumulative(sample_weight: npt.ArrayLike | None, n_rows: int) -> Array:
    """Cumulative weights of the rows, in their order."""
    w = np.ones(n_rows) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    if w.shape != (n_rows,):
        raise ValueError(f"sample_weight has shape {w.shape}, X has {n_rows} rows.")
    if not (np.all(w >= 0) and 0 < w.sum() < np.inf):
        raise ValueError("sample_weight must be non-negative, finite and not all zero.")
    return np.cumsum(w)


def _sample(X: Inputs | RowSource, cdf: Array, u: Array) -> Array:
    """Return the rows at the quantiles u of the weights, dense float64.

    As each row owns an interval of length w_i, a row of weight 2 and the same row twice are one.
    """
    at = np.searchsorted(cdf, u * cdf[-1], side="right")
    rows = X.take(at) if isinstance(X, RowSource) else X[at]
    return np.asarray(_dense(_clipped(rows, _precision(rows))), dtype=np.float64)


def _typical_distance(
    X: Inputs | RowSource, cdf: Array, act: Activation, subsets: Indices | None = None
) -> float | Array:
    """Median distance between random pairs of distinct rows; 1 if no two differ.

    With `subsets`, that of every node, in the inputs that it sees.
    """
    # The same pairs for every seed: the distance is a property of the data alone.
    u = np.random.RandomState(0).random_sample((2, _N_PAIRS))
    difference = _sample(X, cdf, u[0]) - _sample(X, cdf, u[1])
    if subsets is None:
        d = np.abs(difference).sum(axis=1) if act.cityblock else np.sqrt(_squared_norms(difference))
        return float(np.median(d[d > 0])) if np.any(d > 0) else 1.0
    sizes = np.abs(difference.T) if act.cityblock else difference.T**2
    distances = np.empty(len(subsets))
    n_nodes = max(_BLOCK_BYTES // (8 * _N_PAIRS * subsets.shape[1]), 1)
    for start in range(0, len(subsets), n_nodes):
        d = sizes[subsets[start : start + n_nodes]].sum(axis=1)
        d = np.sort(d if act.cityblock else np.sqrt(d), axis=1)
        # Sorted, the zeros come first: the median of the others is between these two places.
        n_zero = np.count_nonzero(d == 0, axis=1)
        low, high = (n_zero + _N_PAIRS - 1) // 2, np.minimum((n_zero + _N_PAIRS) // 2, _N_PAIRS - 1)
        nodes = np.arange(len(d))
        medians = d[nodes, low] / 2 + d[nodes, high] / 2
        distances[start : start + n_nodes] = np.where(medians > 0, medians, 1.0)
    return distances
