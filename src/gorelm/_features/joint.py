"""Several hidden layers side by side, for one regression on the outputs of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from gorelm._features.layer import HiddenLayer
from gorelm._typing import Array


class HiddenOutputs(Protocol):
    """Anything that maps scaled rows X (N, d) to hidden outputs H (N, n_outputs)."""

    @property
    def n_outputs(self) -> int:
        """Number of columns of H."""
        ...

    def transform(self, X: Array, *, out: Array | None = None) -> Array:
        """Return H, written to `out` if that is given."""
        ...


@dataclass(frozen=True, eq=False)
class JointLayer:
    """Hidden layers side by side, H = [s_1 H_1, ..., s_K H_K].

    The scales turn a common ridge penalty into one for each layer: weights of outputs times s are
    penalised as those of the outputs themselves with 1 / s^2 of the penalty.

    Attributes
    ----------
    parts : tuple of HiddenLayer
        The layers.
    scales : ndarray of shape (K,)
        Positive.
    """

    parts: tuple[HiddenLayer, ...]
    scales: Array

    @property
    def n_outputs(self) -> int:
        """Number of columns of H."""
        return sum(part.n_outputs for part in self.parts)

    def transform(self, X: Array, *, out: Array | None = None) -> Array:
        """Return H, written to `out` if that is given."""
        H = np.empty((len(X), self.n_outputs)) if out is None else out
        for part, scale, columns in zip(self.parts, self.scales, self.columns, strict=True):
            part.transform(X, out=H[:, columns])
            H[:, columns] *= scale
        return H

    @property
    def columns(self) -> list[slice]:
        """The columns of H that each layer makes."""
        ends = np.cumsum([0, *(part.n_outputs for part in self.parts)]).tolist()
        return [slice(start, end) for start, end in pairwise(ends)]
