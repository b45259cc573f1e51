r"""Multipliers that prove more, set right in the few directions that H magnifies most.

The multipliers Y of an iterate prove a lower bound that falls with the distance of H'Y from where
it will end, :math:`-(l_2 B + \sigma V)`, squared and divided by :math:`l_2`. Where the ridge is
small, the weights settle long before that distance has: not because Y were far from its end, but
because H magnifies what is left. Hidden outputs have a few very large singular values, so most of
the distance lies in as many directions. With the leading eigenvectors W of H'H and Q = HW, two maps
in turn,

.. math:: Y \leftarrow Y - Q (Q'Q)^{-1} \bigl[Q'Y + W'(l_2 B + \sigma V)\bigr],
          \qquad Y \leftarrow \text{the nearest point of the loss's dual ball},

set these directions right while every y_i stays where it may be. They take a fraction of an
iteration, and what they change in the other directions is so little that a guess of the bound
without it tells when to sum up H'Y for a proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gorelm.directions import Directions
from gorelm.factor import EighFactor, Factor
from gorelm.iterate import Iterate, Mask
from gorelm.problem import Problem
from gorelm.prox import Array
from gorelm.rows import Rows
from gorelm.threads import spread

__all__ = ["Polish", "Polished"]

# How often to set them right: 2 to 6 took as many iterations on rf1.
ROUNDS = 3
# Of a direction's square, the share that full nodes must have to take something over.
SPARE = 1e-3


class Polished(NamedTuple):
    """Polished multipliers and what bounds are made of."""

    Y: Array  # (N, P, m)
    HtY: Array  # (L, P, m)
    YT: Array  # (P,)
    YY: Array  # (P,)


class Polish:
    """Sets the multipliers of some problems right in the leading directions of H.

    Parameters
    ----------
    rows : Rows
        Owner of H, T and the multipliers, in memory.
    directions : Directions
        Those to set right.
    """

    def __init__(self, rows: Rows, directions: Directions) -> None:
        self._rows, self._directions = rows, directions
        self._last: tuple[Array, Mask, Array] | None = None  # the last guess: B, which, Y

    @classmethod
    def where_it_pays(
        cls, rows: Rows, factor: Factor, problem: Problem, directions: Directions | None = None
    ) -> Polish | None:
        """Return one where multipliers are at hand and in a ball, and directions are known.

        A single fit does not know them, and to find them costs as much as it saves.
        """
        if not (rows.in_memory and rows.complete and problem.loss != "squared"):
            return None
        if directions is None and isinstance(factor, EighFactor):
            directions = Directions.of(factor, rows.H)
        return None if directions is None else cls(rows, directions)

    def multipliers(self, s: Iterate, which: Mask) -> Array:
        """Return polished multipliers (N, ., m) of the problems `which` (indices)."""
        if self._last is not None and self._last[0] is s.B:
            _, known, Y = self._last
            if np.isin(which, known).all():
                return Y[:, np.searchsorted(known, which)]
        return self._polished(s, which)[0]

    def guess(self, s: Iterate, which: Mask) -> Polished:
        """Polish the multipliers of the problems `which` (indices) and guess their H'Y."""
        vectors = self._directions.vectors
        Y, QtY = self._polished(s, which)
        self._last = s.B, which, Y
        HtU = s.rho[which, None] * s.HtU[:, which]
        known = HtU.reshape(len(HtU), -1)
        guess = known + vectors @ (QtY - vectors.T @ known)
        YT = np.einsum("npm,nm->p", Y, self._rows.T, dtype=float)
        YY = np.einsum("npm,npm->p", Y, Y, dtype=float)
        return Polished(Y, guess.reshape(HtU.shape), YT, YY)

    def summed(self, given: Polished, which: Mask) -> Polished:
        """Sum up the H'Y of some over the rows."""
        Y = given.Y[:, which]
        return Polished(Y, self._rows.summed(Y), given.YT[which], given.YY[which])

    def without(self, B: Array, full: Mask) -> Array:
        r"""Empty the nodes (L, P, 1) or cells (L, P, m) of B that are not `full`.

        What they said in the leading directions, the others say instead: small weights of many
        nodes add up there. With rows :math:`W_e` of the emptied and :math:`W_f` of the others,
        these get :math:`W_f (W_f'W_f + \varepsilon I)^{-1} W_e'B_e` more.
        """
        vectors = self._directions.vectors
        kept: Array = B * full
        lost = vectors.T @ (B - kept).reshape(len(B), -1)
        lost = lost.reshape(len(lost), *B.shape[1:])
        for at in np.argwhere(~full.all(axis=0)):
            p, targets = at[0], slice(None) if full.shape[2] == 1 else at[1]
            some = vectors * full[:, p, at[1]][:, None]
            inner = some.T @ some
            inner.flat[:: len(inner) + 1] += SPARE
            kept[:, p, targets] += some @ np.linalg.solve(inner, lost[:, p, targets])
        return kept

    def _polished(self, s: Iterate, which: Mask) -> tuple[Array, Array]:
        """Return Y (N, ., m) and Q'Y, whose problems and targets are one axis."""
        vectors, values = self._directions.vectors, self._directions.values
        Q = self._directions.outputs.astype(self._rows.dtype, copy=False)
        slopes = s.problem.l2[which, None] * s.B[:, which]
        if s.sigma is not None:
            slopes += s.sigma[which, None] * s.V[:, which]
        target = -(vectors.T @ slopes.reshape(len(slopes), -1)).reshape(-1, *slopes.shape[1:])
        Y = np.empty((len(self._rows.U), *slopes.shape[1:]), dtype=self._rows.dtype)
        QtY = np.empty(target.shape)

        def polish(k: int) -> None:  # a problem at a time: its multipliers stay in cache
            problem = s.problem.select(which[k : k + 1])
            y = self._rows.U[:, which[k]] * s.rho[which[k]].astype(Y.dtype)
            Qty = Q.T @ y
            for _ in range(ROUNDS):
                correction = (Qty - target[:, k]) / values[:, None]
                y -= Q @ correction.astype(y.dtype, copy=False)
                problem.bring_into_ball(y[:, None], self._rows.omega(slice(None)))
                Qty = Q.T @ y
            Y[:, k], QtY[:, k] = y, Qty

        for _ in spread(polish, range(len(which))):
            pass
        return Y, QtY.reshape(len(QtY), -1)
