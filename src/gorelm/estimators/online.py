"""OS-ELM: the ridge over chunks of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import field
from functools import partial
from numbers import Real
from typing import ClassVar, Self

import numpy as np

from gorelm._compat import Interval, validate_params
from gorelm._features.scaling import Scaling, fit_scaling
from gorelm._solver.far_targets import refuse_huge
from gorelm._solver.least_squares import RecursiveRidge
from gorelm._typing import Array, Constraints, Indices, Inputs, Mask
from gorelm.backends.streamed import source_of, summarise
from gorelm.estimators._base import SizedELM, Weights, all_or_nothing, parameters
from gorelm.estimators._docs import document
from gorelm.estimators._elsewhere import blocks_of, chunk_of, here
from gorelm.estimators._owners import PredictsAnywhere
from gorelm.estimators._prepare import (
    Targets,
    has_target,
    patterns,
    row_scores,
    take_names,
    usable_rows,
    validate_targets,
)
from gorelm.stream import RowBlocks

_FEW_ROWS = 10


@document
@parameters
class OSELMRegressor(PredictsAnywhere, SizedELM):
    r"""Online sequential ELM: R-ELM over rows that come in chunks, none of which is kept.

    .. math:: B = (H'H + I/C)^{-1} H'T

    over all rows so far, whatever the chunks were: the same as ``RELMRegressor(C)`` on all of them
    at once, as long as both scale alike. Kept is a triangular matrix of the size of the layer.
    With ``forgetting`` :math:`< 1` a row of which k rows have come since has a weight of
    :math:`\text{forgetting}^k`.

    The first chunk, or `fit`, sets the scalings (and the centres of radial nodes) for good. If it
    is small or not typical, scale the data beforehand and pass ``input_scaling=None,
    target_scaling=None``.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the penalty; smaller is smoother. It counts when the first
        rows come, and not after.
    forgetting : float, default=1.0
        Factor on the weight of all former rows with each new one: 0.99 remembers about 100 rows,
        0.999 about 1000, 1 all of them. The penalty does not fade (it is between 1/(2C) and 1/C).
    {hidden}
    {seed}

    Attributes
    ----------
    n_samples_seen_ : int
        Number of rows (of positive weight) absorbed so far.
    {fitted}

    Notes
    -----
    The outlier scores are those of the rows of the last call that had any to learn from. Targets
    that have been known in different rows (``missing_targets="ignore"``) need a triangular matrix
    each.

    Examples
    --------
    >>> import numpy as np
    >>> from gorelm import OSELMRegressor
    >>> from gorelm.datasets import make_multitarget
    >>> data = make_multitarget(300, outlier_ratio=0.0, random_state=0)
    >>> model = OSELMRegressor(C=100, n_hidden=50, random_state=0)
    >>> for rows in np.split(np.arange(300), 3):
    ...     model = model.partial_fit(data.X[rows], data.T[rows])
    >>> model.n_samples_seen_
    300
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **SizedELM._parameter_constraints,
        "C": [Interval(Real, 0, None, closed="neither")],
        "forgetting": [Interval(Real, 0, 1, closed="right")],
    }

    C: float = field(default=1.0, kw_only=False)
    forgetting: float = 1.0

    def partial_fit(self, X: object, y: object, sample_weight: object = None) -> Self:
        """Absorb a chunk of rows.

        Parameters
        ----------
        X : array, sparse matrix, tensor, RowBlocks or dask collection (n_samples, n_features)
            Inputs. :class:`~gorelm.stream.RowBlocks`, and the partitions of a dask array or
            dataframe, are read one after the other and not kept: all of them are one chunk,
            however large, and the result is that of the same rows as an array. Tensors come to
            the host.
        y : array of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : array of shape (n_samples,), optional
            Weight of every row; a weight of 2 equals the row twice, a weight of 0 its absence.

        Returns
        -------
        self : object
            The same estimator. A call that fails leaves it as it was.
        """
        with all_or_nothing(self):
            validate_params(self)
            if hasattr(self, "hidden_"):
                self._absorb(chunk_of(X), here(y), here(sample_weight))
            else:
                self._fit(X, y, sample_weight)
                self._warn_if_scaled_by_few()
        return self

    def _fit(self, X: object, y: object, sample_weight: object) -> None:
        super()._fit(chunk_of(X), here(y), here(sample_weight))

    def _validate(
        self, X: object, y: object, sample_weight: object
    ) -> tuple[Inputs | RowBlocks, Array, Array]:
        if not isinstance(X, RowBlocks):
            return super()._validate(X, y, sample_weight)
        take_names(self, X)
        return X, *validate_targets(self, X, y, sample_weight)

    def _fit_rows(self, X: Inputs | RowBlocks, T: Array, w: Array) -> None:
        if not isinstance(X, RowBlocks):
            super()._fit_rows(X, T, w)
            return
        used = usable_rows(T, w)
        self._begin(X, T, w, used)
        self._start(T.shape[1])
        self._absorb_rows(X, T, w, used)

    def _begin(self, X: RowBlocks, T: Array, w: Array, used: Mask) -> None:
        """Fit the scalings to the first chunk and draw the layer."""
        self._input_scaling = fit_scaling(
            self.input_scaling, X.shape[1], partial(summarise, X, w, used)
        )
        self._target_scaling = Scaling.fit(self.target_scaling, T[used], w[used])
        rows = source_of(X, used, self._input_scaling)
        self.hidden_ = self._draw(X.shape[1], rows=rows, w=w[used])

    def _start(self, n_targets: int) -> None:
        first = RecursiveRidge(self.hidden_.n_outputs, n_targets, self.C)
        self._recursions = [(np.arange(n_targets), first)]
        self.n_samples_seen_ = 0

    def _solve(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> Weights:
        self._start(T.shape[1])
        self._learn_rows(H, T, omega, observed)
        return self._found(T.shape[1])

    def _learn_rows(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> None:
        """Absorb rows; targets share a recursion as long as they are known in the same rows."""
        refuse_huge(T, "y", H.dtype, "set target_scaling or rescale y")
        self.n_samples_seen_ += len(H)
        H, T = self._fade(H, T, omega)
        self._learn(H, T, observed)

    def _fade(self, H: Array, T: Array, omega: Array | None) -> tuple[Array, Array]:
        """Fade the rows so far, and of new rows the earlier ones; a weight of 2 is two rows."""
        if self.forgetting == 1.0:
            return H, T
        left = self._left(np.ones(len(H)) if omega is None else omega**2.0)
        self._recursions = [(columns, it.faded(left[0])) for columns, it in self._recursions]
        root = np.sqrt(left[1:])[:, None]
        return H * root.astype(H.dtype), T * root

    def _left(self, w: Array) -> Array:
        """Return the factors of forgetting for earlier rows, and for each of these of weight w."""
        since = np.concatenate([[0.0], np.cumsum(w[::-1])])[::-1]
        return np.asarray(self.forgetting**since)

    def _learn(self, H: Array, T: Array, observed: Mask | None) -> None:
        self._recursions = [
            after
            for columns, recursion in self._recursions
            for after in learnt(columns, recursion, H, T, observed)
        ]

    def _found(self, n_targets: int) -> Weights:
        coef = np.empty((self.hidden_.n_outputs, n_targets))
        for columns, recursion in self._recursions:
            coef[:, columns] = recursion.weights()
        return Weights(coef)

    def _absorb(self, X: object, y: object, sample_weight: object) -> None:
        X = self._validate_new(X)
        T, w = self._targets_again(X, y, sample_weight)
        used = has_target(T, w)
        if used.any():
            self._absorb_rows(X, T, w, used)

    def _absorb_rows(self, X: Inputs | RowBlocks, T: Array, w: Array, used: Mask) -> None:
        for rows, x in blocks_of(X):
            if (mine := used[rows]).any():
                design = self._scaled(x[mine], T[rows][mine], w[rows][mine])
                H = design.hidden(self.hidden_)
                self._learn_rows(H, design.T, design.omega, design.observed)
        self._remember(self._found(T.shape[1]))
        scores = row_scores(self._residuals(X, T), T)
        size = Targets.scaled(self._target_scaling, T[used], w[used]).typical_size()
        self._score(scores, used, w[used], size)

    def _warn_if_scaled_by_few(self) -> None:
        scaled = [name for name in ("input_scaling", "target_scaling") if getattr(self, name)]
        if scaled and self.n_samples_seen_ < _FEW_ROWS:
            warnings.warn(
                f"{' and '.join(scaled)} are set by the first chunk, which has only "
                f"{self.n_samples_seen_} row(s): begin with more rows, or scale the data "
                "yourself and pass input_scaling=None, target_scaling=None",
                UserWarning,
                stacklevel=3,
            )

    def _keep(self, outputs: Indices) -> None:
        self._recursions = [(columns, part.keep(outputs)) for columns, part in self._recursions]
        super()._keep(outputs)


def learnt(
    columns: Indices, recursion: RecursiveRidge, H: Array, T: Array, observed: Mask | None
) -> Iterator[tuple[Indices, RecursiveRidge]]:
    """Yield the recursions of some targets after rows, one for each group known in the same."""
    known = None if observed is None else observed[:, columns]
    for rows, own in patterns(known, len(columns)):
        part = recursion if len(own) == len(columns) else recursion.take(own)
        yield columns[own], part.absorbed(H[rows], T[rows][:, columns[own]])
