"""Names of types that the whole library uses."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

Array: TypeAlias = npt.NDArray[np.floating[Any]]
Mask: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.intp]
# Checked inputs X: dense or sparse.
Inputs: TypeAlias = Array | sparse.csr_array
# What scikit-learn checks an estimator's parameters against.
Constraints: TypeAlias = dict[str, list[object]]
RandomState: TypeAlias = int | np.random.RandomState | None
# A line of a fit's history, and who is told of it: a true answer stops the fit.
Record: TypeAlias = dict[str, float]
Callback: TypeAlias = Callable[[Record], object]


class NamedInputs(Protocol):
    """Inputs that are not one array: their number, and their names where they have any."""

    @property
    def shape(self) -> tuple[int | None, int]:
        """Return the numbers of rows (None: not known yet) and of inputs."""
        ...

    @property
    def feature_names(self) -> list[str] | None:
        """Return the names of the inputs."""
        ...
