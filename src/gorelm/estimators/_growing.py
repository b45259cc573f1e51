"""The growing protocol: add nodes to a fitted network, by hand or until a rule says stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from sklearn.model_selection import KFold, ShuffleSplit, check_cv
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gorelm._compat import Interval, RealNotInt, validate_params
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import weighted_quantiles
from gorelm._solver.linalg import Indices
from gorelm._typing import Array
from gorelm.estimators._base import (
    BaseELM,
    Weights,
    all_or_nothing,
    parameters,
    require_finite,
)
from gorelm.estimators._prepare import Design, Mask, row_norms, row_scores, usable_rows

__all__ = ["GrowingELM", "Machine", "Network", "Table", "ratio"]

_COUNT = Interval(Integral, 1, None, closed="left")

Growth = dict[str, float]


@parameters
class GrowingELM(BaseELM):
    """A `BaseELM` that adds nodes; methods differ in `_machine` and `_find`."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseELM._parameter_constraints,
        "n_initial": [_COUNT],
        "n_step": [_COUNT],
        "max_hidden": [_COUNT],
        "target_error": [Interval(Real, 0, None, closed="left"), None],
        "patience": [_COUNT, None],
        "min_improvement": [Interval(Real, 0, 1, closed="left")],
        "max_pruned": [Interval(Real, 0, 1, closed="right"), None],
        "validation": [Interval(RealNotInt, 0, 1, closed="neither"), "cv_object", None],
        "prune_on_grow": ["boolean"],
        "warm_start": ["boolean"],
    }

    n_initial: int = 100
    n_step: int = 100
    max_hidden: int = 1000
    target_error: float | None = None
    patience: int | None = None
    min_improvement: float = 1e-3
    max_pruned: float | None = None
    validation: Any = None
    prune_on_grow: bool = False
    warm_start: bool = False

    # -- for each method to define ---------------------------------------------------------------

    def _machine(self, H: Array, T: Array, omega: Array | None, observed: Mask | None) -> Machine:
        """Begin with these nodes."""
        raise NotImplementedError

    def _find(self, machine: Any) -> Weights:
        """Return the weights for the machine's nodes as they are."""
        raise NotImplementedError

    # -- fitting ---------------------------------------------------------------------------------

    @property
    def _n_first(self) -> int:
        return self.n_initial

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        if self.n_initial > self.max_hidden:
            raise ValueError(
                f"n_initial={self.n_initial} is more than max_hidden={self.max_hidden}: a fit "
                "begins with the one and may grow to the other"
            )
        network: Network | None = None
        growth: list[Growth] = []
        if self.warm_start and hasattr(self, "hidden_"):
            table = self._table_again(X, y, sample_weight)
            layer, growth = self.hidden_, self.growth_
            if self._kept() and self._table.same_as(table):
                network = self._network
        else:
            X, T, w = self._validate(X, y, sample_weight)
            table = self._table_of(X, T, w, self._design)
            layer = self._draw(X.shape[1], table.design)
        if self.validation is None:
            again = network is not None
            network = network or Network(self._machine, layer, table.design)
            go_on = again and not self._reason_to_stop(growth, layer.n_drawn)
            last = [self.coef_] if go_on else None
            growth = growth[:-1] if again and not go_on else growth  # that size is done again
            found, records, self.stopped_by_ = self._grow_until_told([network], [], last)
        else:
            folds = self._folds(table)
            judges = [Network(self._machine, layer, table.design, inside) for inside, _ in folds]
            others = [table.design.take(outside) for _, outside in folds]
            _, records, self.stopped_by_ = self._grow_until_told(judges, others)
            best = min(records, key=lambda record: record["validation_error"])
            network = network or Network(self._machine, layer, table.design)
            found = self._grow_to(network, int(best["n_drawn"]))
        self.growth_: list[Growth] = [*growth, *records]
        self._settle(network, table, found)

    def grow(
        self, n_new: int | None = None, X: Any = None, y: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add nodes to the fitted network and adapt all output weights.

        Growing by p and then by q gives the network that growing by p + q gives (iterative methods:
        to within `tol`; with `prune_on_grow`, only while nothing is pruned).

        Parameters
        ----------
        n_new : int, optional
            Number of nodes; by default `n_step`.
        X, y, sample_weight : optional
            Rows to fit to. By default those of the last fit, which the model keeps in memory with
            what it needs to grow fast, but not in a pickle or a copy.

        Returns
        -------
        self : object
            The same estimator, grown. A call that fails leaves it as it was.
        """
        check_is_fitted(self)
        n_new = self.n_step if n_new is None else _count(n_new)
        with all_or_nothing(self):
            validate_params(self)
            if X is not None:
                table = self._table_again(X, y, sample_weight)
                network = Network(self._machine, self.hidden_, table.design)
            elif y is not None or sample_weight is not None:
                raise ValueError("y and sample_weight belong to an X: pass X too, or neither")
            elif self._kept():
                table, network = self._table, self._network
            elif hasattr(self, "_table"):  # the last growth failed, and may have left a part
                table = self._table
                network = Network(self._machine, self.hidden_, table.design)
            else:
                raise ValueError(
                    "this model no longer has its training rows (it was unpickled, copied or told "
                    "to forget them): use grow(n_new, X, y)"
                )
            started = time.perf_counter()
            coef = self.coef_
            if not network.settled and self.prune_on_grow and network.machine is not None:
                coef = self._found(network).coef
            self._enlarge([network], [coef], n_new)
            found = self._found(network)
            record = self._record([network], [found], [], started)
            self.growth_ = [*self.growth_, record]
            self._settle(network, table, found)
        return self

    def forget_rows(self) -> Self:
        """Free the memory that growing would need; `grow` then wants X and y again."""
        for name in ("_network", "_table"):
            if hasattr(self, name):
                delattr(self, name)
        return self

    def prune(self) -> Self:
        """Remove the hidden nodes whose output weights are all exactly zero.

        Predictions stay the same (to rounding); prediction gets cheaper in proportion.

        Returns
        -------
        self : object
            The same estimator, its `hidden_` and `coef_` reduced to `n_active_` outputs.
        """
        check_is_fitted(self)
        if self._kept():
            self._network.prune(self.coef_)
            self._network.settled = True
        return super().prune()

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in ("_network", "_table")}

    # -- growing ---------------------------------------------------------------------------------

    def _grow_until_told(
        self, networks: list[Network], others: list[Design], coefs: list[Array] | None = None
    ) -> tuple[Weights, list[Growth], str]:
        """Let networks grow in step; returns the last weights of the first, and why it stopped.

        Given weights that they have, they begin by growing.
        """
        records: list[Growth] = []
        while True:
            started = time.perf_counter()
            for network in networks:
                network.settled = False
            if coefs is not None:
                step = min(self.n_step, self.max_hidden - networks[0].layer.n_drawn)
                self._enlarge(networks, coefs, step)
            found = [self._found(network) for network in networks]
            coefs = [weights.coef for weights in found]
            records.append(self._record(networks, found, others, started))
            reason = self._reason_to_stop(records, networks[0].layer.n_drawn)
            if any(weights.status == "stopped" for weights in found):
                reason = "callback"
            if reason:
                return found[0], records, reason

    def _grow_to(self, network: Network, n_drawn: int) -> Weights:
        """Go the way to a size again; without pruning on the way, in one step."""
        step = self.n_step if self.prune_on_grow else self.max_hidden
        while network.layer.n_drawn < n_drawn:
            if self.prune_on_grow and network.machine is not None:
                network.prune(self._found(network).coef)
            network.grow(self._machine, min(step, n_drawn - network.layer.n_drawn))
        return self._found(network)

    def _found(self, network: Network) -> Weights:
        found = self._find(network.machine)
        require_finite(found)
        return found

    def _enlarge(self, networks: list[Network], coefs: list[Array], n_new: int) -> None:
        for network, coef in zip(networks, coefs, strict=True):
            if self.prune_on_grow:
                network.prune(coef)
            network.grow(self._machine, n_new)

    def _record(
        self,
        networks: list[Network],
        found: list[Weights],
        others: list[Design],
        started: float,
    ) -> Growth:
        """Write down a size: means over the networks, and seconds since `started`."""
        pairs = [
            network.validation_error(weights.coef, rows)
            for network, weights, rows in zip(networks, found, others, strict=False)
        ]
        active = [n.count_active(w.coef) for n, w in zip(networks, found, strict=True)]
        return {
            "n_drawn": networks[0].layer.n_drawn,
            "n_hidden": float(np.mean([network.layer.n_nodes for network in networks])),
            "n_active": float(np.mean(active)),
            "error": float(
                np.mean([n.error(w.coef) for n, w in zip(networks, found, strict=True)])
            ),
            "validation_error": ratio(*np.sum(pairs, axis=0)) if pairs else np.nan,
            "objective": float(np.mean([weights.objective for weights in found])),
            "dual_gap": max(weights.dual_gap for weights in found),
            "n_iter": sum(weights.n_iter for weights in found),
            "seconds": time.perf_counter() - started,
        }

    def _reason_to_stop(self, records: list[Growth], n_drawn: int) -> str:
        last = records[-1]
        score = "error" if self.validation is None else "validation_error"
        if self.target_error is not None and last[score] <= self.target_error:
            return "target_error"
        pruned = 1.0 - last["n_active"] / max(last["n_hidden"], 1.0)
        if self.max_pruned is not None and pruned >= self.max_pruned:
            return "max_pruned"
        if (
            self.patience is not None
            and _steps_without_gain([record[score] for record in records], self.min_improvement)
            >= self.patience
        ):
            return "patience"
        return "max_hidden" if n_drawn >= self.max_hidden else ""

    def _folds(self, table: Table) -> list[tuple[Indices, Indices]]:
        """Return (rows to fit, rows to judge by) of the rows that count."""
        n_rows, rng = len(table.design.w), check_random_state(self.random_state)
        whole = isinstance(self.validation, Integral)
        if whole and not 2 <= int(self.validation) <= n_rows:
            raise ValueError(
                f"validation={self.validation} must be at least 2 and at most the number of rows, "
                f"{n_rows}"
            )
        if whole:
            splitter = KFold(int(self.validation), shuffle=True, random_state=rng)
            folds = list(splitter.split(np.zeros((n_rows, 1))))
        elif isinstance(self.validation, Real):
            once = ShuffleSplit(1, test_size=float(self.validation), random_state=rng)
            folds = list(once.split(np.zeros((n_rows, 1))))
        else:  # these name rows as they were given
            place, every = np.cumsum(table.used) - 1, np.arange(len(table.used))
            splits = check_cv(self.validation).split(np.zeros((len(every), 1)))
            named = [[every[np.asarray(part)] for part in split] for split in splits]
            folds = [
                (place[inside[table.used[inside]]], place[outside[table.used[outside]]])
                for inside, outside in named
            ]
        if not folds:
            raise ValueError("validation gave no splits (an iterator can be used only once)")
        for inside, outside in folds:
            if not (len(inside) and len(outside)):
                raise ValueError("validation leaves a fold without rows to fit or to judge by")
            known = table.design.observed
            if known is not None and not known[inside].any(axis=0).all():
                raise ValueError(
                    "validation leaves a fold without any known value of a target; use fewer folds"
                )
        return folds

    # -- rows ------------------------------------------------------------------------------------

    def _kept(self) -> bool:
        """Whether the training rows are here, with the network that the model has."""
        network = getattr(self, "_network", None)
        return network is not None and network.settled

    def _table_of(self, X: Any, T: Array, w: Array, design: Any) -> Table:
        used = usable_rows(T, w)
        rows = slice(None) if used.all() else used
        # Copies, as the caller may change his arrays before the model grows.
        return Table(design(X[rows].copy(), T[rows], w[rows]), T.copy(), used, X[~used])

    def _table_again(self, X: Any, y: Any, sample_weight: Any) -> Table:
        """Take rows in, scaled as in the first fit."""
        X = self._validate_new(X)
        T, w = self._targets_again(X, y, sample_weight)
        return self._table_of(X, T, w, self._scaled)

    def _settle(self, network: Network, table: Table, found: Weights) -> None:
        """Make the network's weights the model's, and judge the rows by them."""
        self.hidden_ = network.layer
        self._remember(found)
        design, used = table.design, table.used
        residuals = np.empty(table.T.shape)
        residuals[used] = design.residuals(network.outputs(self.coef_))
        if not used.all():
            residuals[~used] = self._residuals(table.unused, table.T[~used])
        scores = row_scores(residuals, table.T)
        self._score(scores, used, design.w, design.typical_size())
        self._network, self._table, network.settled = network, table, True


def _count(n_new: Any) -> int:
    if isinstance(n_new, bool) or not isinstance(n_new, Integral):
        raise TypeError(f"n_new must be a whole number of nodes, got {n_new!r}")
    if n_new < 1:
        raise ValueError(f"n_new must be at least 1, got {n_new}")
    return int(n_new)


def _steps_without_gain(errors: list[float], min_improvement: float) -> int:
    """Count the sizes since the last that was better by a share of `min_improvement`."""
    best, since = np.inf, 0
    for error in errors:
        gained = error < best * (1.0 - min_improvement) if np.isfinite(best) else True
        best, since = (error, 0) if gained else (best, since + 1)
    return since


# == src/gorelm/estimators/network.py
# """Networks that grow over training rows, and how wrong they are."""


class Machine(Protocol):
    """Training rows with what a method keeps of them while nodes come and go."""

    def extend(self, dH: Array) -> None:
        """Add nodes."""
        ...

    def keep(self, nodes: Indices) -> None:
        """Keep some nodes; the weights of the others are 0."""
        ...

    def outputs(self, coef: Array) -> Array:
        """Return H times the weights last found."""
        ...


Maker = Callable[[Array, Array, Array | None, Mask | None], Machine]


class Network:
    """A hidden layer over some of the training rows, and the machine that fits it.

    Parameters
    ----------
    make : callable
        Makes a machine of H, T, omega and which target cells are known.
    layer : HiddenLayer
        To begin with.
    every : Design
        All training rows; radial nodes take their centres from these.
    rows : array of int, optional
        Those that the network is fitted to; None: all.
    """

    def __init__(
        self, make: Maker, layer: HiddenLayer, every: Design, rows: Indices | None = None
    ) -> None:
        self.layer, self._every = layer, every
        self.design = every if rows is None else every.take(rows)
        self.machine = self._begin(make) if layer.n_outputs else None
        self.settled = False  # whether the model's weights are those of the nodes it has

    def _begin(self, make: Maker) -> Machine:
        design = self.design
        return make(design.hidden(self.layer), design.T, design.omega, design.observed)

    def grow(self, make: Maker, n_new: int) -> None:
        """Add nodes, to the machine too."""
        self.settled = False
        every, n_old = self._every, self.layer.n_outputs
        self.layer = self.layer.grow(n_new, X=every.X, sample_weight=every.w, offset=every.offset)
        if self.machine is None:
            self.machine = self._begin(make)
        else:
            new = self.layer.keep(np.arange(n_old, self.layer.n_outputs))
            self.machine.extend(self.design.hidden(new))

    def prune(self, coef: Array) -> None:
        """Drop the nodes without weights."""
        active = np.flatnonzero(coef.any(axis=1))
        if len(active) == len(coef):
            return
        self.settled = False
        self.layer = self.layer.keep(active)
        if self.machine is not None and len(active):
            self.machine.keep(active)
        else:
            self.machine = None

    def outputs(self, coef: Array) -> Array:
        """Return what the network says of its rows."""
        return np.zeros(self.design.T.shape) if self.machine is None else self.machine.outputs(coef)

    def count_active(self, coef: Array) -> int:
        """Return the number of nodes (not of directly linked inputs) with a weight."""
        return int(np.count_nonzero(coef[len(self.layer.inputs) :].any(axis=1)))

    def error(self, coef: Array) -> float:
        """Return the mean error norm of the rows, as a share of the best constant's."""
        residuals = self.design.residuals(self.outputs(coef))
        return ratio(_sum_of_norms(self.design, residuals), self._error_of_medians)

    @cached_property
    def _error_of_medians(self) -> float:
        return _error_of_medians(self.design)

    def validation_error(self, coef: Array, others: Design) -> tuple[float, float]:
        """Return the sum of error norms over other rows, and that of these rows' medians."""
        residuals = others.residuals(others.hidden(self.layer) @ coef)
        return _sum_of_norms(others, residuals), _error_of_medians(others, self.design)


@dataclass
class Table:
    """The training rows as given: those that count, scaled, and the others."""

    design: Design
    T: Array
    used: Mask
    unused: Any  # inputs of the rows that do not count

    def same_as(self, other: Table) -> bool:
        """Tell whether the other has the same rows."""
        one, two = self.design, other.design
        if one.X.shape != two.X.shape or not np.array_equal(self.T, other.T, equal_nan=True):
            return False
        return np.array_equal(one.w, two.w) and not (one.X != two.X).sum()


def _sum_of_norms(design: Design, residuals: Array) -> float:
    return float(design.w @ row_norms(residuals))


def _error_of_medians(design: Design, source: Design | None = None) -> float:
    """Return the sum of error norms of predicting each target's median (over `source`)."""
    source = source or design
    T = source.T if source.omega is None else source.T / source.omega[:, None]
    known = np.ones(T.shape, dtype=bool) if source.observed is None else source.observed
    medians = [
        float(weighted_quantiles(t[k], 0.5, source.w[k])) if k.any() else 0.0
        for t, k in zip(T.T, known.T, strict=True)
    ]
    omega = 1.0 if design.omega is None else design.omega[:, None]
    return _sum_of_norms(design, design.residuals(omega * np.array(medians)[None]))


def ratio(error: float, unit: float) -> float:
    """Return error / unit; where a constant is perfect, any error at all is infinitely worse."""
    if unit > 0:
        return float(error / unit)
    return 0.0 if error <= 0 else float("inf")
