"""The few directions of the weights that H magnifies most, and how they change as H grows."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy import linalg

from gorelm.factor import EighFactor, Factor, above_rounding, gram, product
from gorelm.prox import Array

__all__ = ["DIRECTIONS", "MANY_NEW", "Directions"]

# How many: 16 to 100 took as many iterations of paths on rf1.
DIRECTIONS = 32
# New nodes from which on directions are sooner found anew than turned.
MANY_NEW = 256
# Rounds of subspace iteration. The spectrum of hidden outputs falls steeply.
_ROUNDS = 3


class Directions:
    r"""Orthonormal directions W of the weights with orthogonal outputs Q = HW.

    Parameters
    ----------
    H : array (N, L)
        Hidden outputs.
    vectors : array (L, k)
        W.
    values : array (k,)
        The squared norms of the columns of Q.
    """

    def __init__(self, H: Array, vectors: Array, values: Array) -> None:
        self._H, self.vectors, self.values = H, vectors, values

    @cached_property
    def outputs(self) -> Array:
        """Q."""
        return np.asarray(self._H @ self.vectors.astype(self._H.dtype, copy=False))

    @classmethod
    def of(cls, factor: EighFactor, H: Array) -> Directions:
        """Return the leading eigenvectors of H'H, which are known."""
        return cls(H, *factor.leading(min(DIRECTIONS, *H.shape)))

    @classmethod
    def find(cls, H: Array, factor: Factor) -> Directions:
        """Look for them: products of H'H with anything turn towards them."""
        count = min(DIRECTIONS, *H.shape)
        W = np.random.default_rng(0).standard_normal((H.shape[1], count))
        for _ in range(_ROUNDS):
            GW = factor.times(W[:, None])
            GW = product(H, H @ W.astype(H.dtype, copy=False)) if GW is None else GW[:, 0]
            W = linalg.qr(GW, mode="economic", check_finite=False)[0]
        Q = H @ W.astype(H.dtype, copy=False)
        values, mix = linalg.eigh(product(Q, Q))
        found = cls(H, W @ mix, above_rounding(values))
        found.outputs = Q @ mix.astype(H.dtype, copy=False)
        return found

    def extend(self, dH: Array, corner: Array | None = None) -> None:
        """Turn towards new nodes dH (N, d), within what these and W span.

        `corner` is dH'dH (lower triangle), where it is known.
        """
        Q, k = self.outputs, len(self.values)
        cross, corner = product(dH, Q), gram(dH) if corner is None else corner
        both = np.block([[np.diag(self.values), cross.T], [cross, corner]])
        count, size = min(DIRECTIONS, len(dH), len(self.vectors) + dH.shape[1]), len(both)
        values, mix = linalg.eigh(both, subset_by_index=[size - count, size - 1])
        self.values = above_rounding(values)
        self.vectors = np.concatenate([self.vectors @ mix[:k], mix[k:]])
        mix = mix.astype(Q.dtype, copy=False)
        self.outputs = Q @ mix[:k] + dH.astype(Q.dtype, copy=False) @ mix[k:]
