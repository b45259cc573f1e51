"""The public names of the core, for extensions of the library.

The optimisation problem (`Problem`), the loop that solves it (`solve`, `solve_rows`, `Settings`),
the contract of owners of rows (`Rows`, with the optional `DeviceRows` and `WarmRows`), hidden
layers, and the base classes of the estimators. :doc:`/extend` shows each in use.
"""

from gorelm._features.activations import ACTIVATIONS, Activation
from gorelm._features.guide import SubsetGuide, explained_by_subset
from gorelm._features.layer import HiddenLayer
from gorelm._solver.admm import ADAPTIVE, PAPER, Settings
from gorelm._solver.linalg import CholeskyFactor, EighFactor, Factor
from gorelm._solver.prepared import Prepared, solve, solve_rows
from gorelm._solver.problem import LOSSES, Problem, norms, shrink, shrink_rest
from gorelm._solver.rows import (
    BlockRows,
    DeviceRows,
    MemoryRows,
    Rows,
    StepSums,
    WarmRows,
    factor_for,
)
from gorelm._solver.state import Solution
from gorelm.estimators._base import BaseELM, IterativeELM, SizedELM, parameters

__all__ = [
    "ACTIVATIONS",
    "ADAPTIVE",
    "LOSSES",
    "PAPER",
    "Activation",
    "BaseELM",
    "BlockRows",
    "CholeskyFactor",
    "DeviceRows",
    "EighFactor",
    "Factor",
    "HiddenLayer",
    "IterativeELM",
    "MemoryRows",
    "Prepared",
    "Problem",
    "Rows",
    "Settings",
    "SizedELM",
    "Solution",
    "StepSums",
    "SubsetGuide",
    "WarmRows",
    "explained_by_subset",
    "factor_for",
    "norms",
    "parameters",
    "shrink",
    "shrink_rest",
    "solve",
    "solve_rows",
]
