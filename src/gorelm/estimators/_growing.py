"""How networks grow: nodes are added to a fitted network, by hand or until a rule stops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
from sklearn.model_selection import BaseCrossValidator, KFold, ShuffleSplit, check_cv
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gorelm._compat import Interval, RealNotInt, validate_params
from gorelm._features.guide import SubsetGuide, explained_by_subset
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import weighted_quantiles
from gorelm._typing import Array, Constraints, Indices, Inputs, Mask
from gorelm.estimators._base import (
    BaseELM,
    Weights,
    all_or_nothing,
    parameters,
    require_finite,
)
from gorelm.estimators._prepare import Design, row_norms, row_scores, usable_rows

__all__ = ["GrowingELM", "GrowingSolver"]

_COUNT = Interval(Integral, 1, None, closed="left")
_MEMORY = ("_network", "_training_rows")  # what a copy of the model does not have

Growth = dict[str, float]


class GrowingSolver(Protocol):
    """Training rows, and what a method keeps of them while nodes are added and removed."""

    def extend(self, dH: Array) -> None:
        """Add nodes with hidden outputs `dH` (N, d), times omega."""
        ...

    def keep(self, nodes: Indices) -> None:
        """Keep some nodes; the weights of the others are 0."""
        ...

    def outputs(self, coef: Array) -> Array:
        """Return H times the weights last found."""
        ...


Solver = TypeVar("Solver", bound=GrowingSolver)
MakeSolver = Callable[[Array, Array, Array | None, Mask | None], Solver]


@parameters
class GrowingELM(BaseELM, Generic[Solver]):
    """A `BaseELM` that adds nodes; methods differ in `_make_solver` and `_solve_nodes`."""

    _parameter_constraints: ClassVar[Constraints] = {
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
        "guided": ["boolean"],
        "warm_start": ["boolean"],
    }

    n_initial: int = 100
    n_step: int = 100
    max_hidden: int = 1000
    target_error: float | None = None
    patience: int | None = None
    min_improvement: float = 1e-3
    max_pruned: float | None = None
    validation: float | BaseCrossValidator | Iterable[tuple[Indices, Indices]] | None = None
    prune_on_grow: bool = False
    guided: bool = False
    warm_start: bool = False

    # -- for each method to define ---------------------------------------------------------------

    def _make_solver(
        self, H: Array, T: Array, omega: Array | None, observed: Mask | None
    ) -> Solver:
        """Return the solver for the nodes with outputs H; arguments as for `BaseELM._solve`."""
        raise NotImplementedError

    def _solve_nodes(self, solver: Solver) -> Weights:
        """Return the output weights for the nodes that the solver has now."""
        raise NotImplementedError

    # -- fitting ---------------------------------------------------------------------------------

    @property
    def _n_first(self) -> int:
        return self.n_initial

    def _fit(self, X: object, y: object, sample_weight: object) -> None:
        if self.n_initial > self.max_hidden:
            raise ValueError(
                f"n_initial={self.n_initial} is more than max_hidden={self.max_hidden}: a fit "
                "begins with the one and may grow to the other"
            )
        self._check_guided()
        network: GrowingNetwork[Solver] | None = None
        growth: list[Growth] = []
        if self.warm_start and hasattr(self, "hidden_"):
            rows = self._more_rows(X, y, sample_weight)
            layer, growth = self.hidden_, self.growth_
            if self._can_continue() and self._training_rows.same_as(rows):
                network = self._network
        else:
            checked, T, w = self._validate(X, y, sample_weight)
            rows = self._rows_of(checked, T, w, self._design)
            layer = self._draw(checked.shape[1], rows.design)
        if self.validation is None:
            again = network is not None
            network = network or GrowingNetwork(self._make_solver, layer, rows.design)
            go_on = again and not self._reason_to_stop(growth, layer.n_drawn)
            last = [self.coef_] if go_on else None
            growth = growth[:-1] if again and not go_on else growth  # that size is solved again
            found, records, self.stopped_by_ = self._grow_until_stopped([network], [], last)
        else:
            folds = self._folds(rows)
            networks = [
                GrowingNetwork(self._make_solver, layer, rows.design, fitted) for fitted, _ in folds
            ]
            held_out = [rows.design.take(others) for _, others in folds]
            _, records, self.stopped_by_ = self._grow_until_stopped(networks, held_out)
            best = min(records, key=lambda record: record["validation_error"])
            network = network or GrowingNetwork(self._make_solver, layer, rows.design)
            found = self._grow_to(network, int(best["n_drawn"]))
        self.growth_: list[Growth] = [*growth, *records]
        self._adopt(network, rows, found)

    def grow(
        self,
        n_new: int | None = None,
        X: object = None,
        y: object = None,
        sample_weight: object = None,
    ) -> Self:
        """Add nodes to the fitted network and adapt all output weights.

        Growing by p and then by q gives the network that growing by p + q gives (iterative methods:
        to within `tol`; with `prune_on_grow`, only while nothing is pruned). With `guided` it does
        not: the model after p nodes says what the next ones see.

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
            self._check_guided()
            if X is not None:
                rows = self._more_rows(X, y, sample_weight)
                network = GrowingNetwork(self._make_solver, self.hidden_, rows.design)
            elif y is not None or sample_weight is not None:
                raise ValueError("y and sample_weight belong to an X: pass X too, or neither")
            elif self._can_continue():
                rows, network = self._training_rows, self._network
            elif hasattr(self, "_training_rows"):  # the last call failed after it added nodes
                rows = self._training_rows
                network = GrowingNetwork(self._make_solver, self.hidden_, rows.design)
            else:
                raise ValueError(
                    "this model no longer has its training rows (it was unpickled or copied, or "
                    "forget_rows was called): use grow(n_new, X, y)"
                )
            started = time.perf_counter()
            coef = self.coef_
            if not network.has_model_weights and self.prune_on_grow and network.solver is not None:
                coef = self._found(network).coef
            self._enlarge([network], [coef], n_new)
            found = self._found(network)
            record = self._record([network], [found], [], started)
            self.growth_ = [*self.growth_, record]
            self._adopt(network, rows, found)
        return self

    def forget_rows(self) -> Self:
        """Free the memory that growing would need; `grow` then wants X and y again."""
        for name in _MEMORY:
            if hasattr(self, name):
                delattr(self, name)
        return self

    def _keep(self, outputs: Indices) -> None:
        if self._can_continue():
            self._network.prune(self.coef_)
            self._network.has_model_weights = True
        super()._keep(outputs)

    def __getstate__(self) -> dict[str, object]:
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _MEMORY}

    # -- growing ---------------------------------------------------------------------------------

    def _check_guided(self) -> None:
        if self.guided and self.n_inputs is None:
            raise ValueError(
                "guided=True chooses the inputs that new nodes see, and with n_inputs=None they "
                "see all: set n_inputs to a number"
            )

    def _grow_until_stopped(
        self,
        networks: list[GrowingNetwork[Solver]],
        held_out: list[Design],
        coefs: list[Array] | None = None,
    ) -> tuple[Weights, list[Growth], str]:
        """Grow networks by the same numbers of nodes until a rule stops them.

        Returns the last weights of the first, a record of each size, and the rule. With weights
        `coefs` of the nodes they have, networks grow before they are first solved.
        """
        records: list[Growth] = []
        while True:
            started = time.perf_counter()
            for network in networks:
                network.has_model_weights = False
            if coefs is not None:
                step = min(self.n_step, self.max_hidden - networks[0].layer.n_drawn)
                self._enlarge(networks, coefs, step)
            found = [self._found(network) for network in networks]
            coefs = [weights.coef for weights in found]
            records.append(self._record(networks, found, held_out, started))
            reason = self._reason_to_stop(records, networks[0].layer.n_drawn)
            if any(weights.status == "stopped" for weights in found):
                reason = "callback"
            if reason:
                return found[0], records, reason

    def _grow_to(self, network: GrowingNetwork[Solver], n_drawn: int) -> Weights:
        """Grow to a size that a validation has chosen, in one step unless steps need weights."""
        by_steps = self.prune_on_grow or self.guided
        step = self.n_step if by_steps else self.max_hidden
        while network.layer.n_drawn < n_drawn:
            n_new = min(step, n_drawn - network.layer.n_drawn)
            if by_steps and network.solver is not None:
                self._enlarge([network], [self._found(network).coef], n_new)
            else:
                network.grow(self._make_solver, n_new)
        return self._found(network)

    def _found(self, network: GrowingNetwork[Solver]) -> Weights:
        assert network.solver is not None  # there is a node
        found = self._solve_nodes(network.solver)
        require_finite(found)
        return found

    def _enlarge(
        self, networks: list[GrowingNetwork[Solver]], coefs: list[Array], n_new: int
    ) -> None:
        for network, coef in zip(networks, coefs, strict=True):
            guide = network.guide(coef) if self.guided else None
            if self.prune_on_grow:
                network.prune(coef)
            network.grow(self._make_solver, n_new, guide)

    def _record(
        self,
        networks: list[GrowingNetwork[Solver]],
        found: list[Weights],
        held_out: list[Design],
        started: float,
    ) -> Growth:
        """Return the record of a size: means over the networks, and seconds since `started`."""
        pairs = [
            network.validation_error(weights.coef, rows)
            for network, weights, rows in zip(networks, found, held_out, strict=False)
        ]
        active = [n.count_active(w.coef) for n, w in zip(networks, found, strict=True)]
        return {
            "n_drawn": networks[0].layer.n_drawn,
            "n_hidden": float(np.mean([network.layer.n_nodes for network in networks])),
            "n_active": float(np.mean(active)),
            "error": float(
                np.mean([n.error(w.coef) for n, w in zip(networks, found, strict=True)])
            ),
            "validation_error": _ratio(*np.sum(pairs, axis=0)) if pairs else np.nan,
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

    def _folds(self, rows: TrainingRows) -> list[tuple[Indices, Indices]]:
        """Return indices of rows to fit and of rows held out, among the rows that count."""
        n_rows, rng = len(rows.design.w), check_random_state(self.random_state)
        if isinstance(self.validation, Integral):
            n_folds = int(self.validation)
            if not 2 <= n_folds <= n_rows:
                raise ValueError(
                    f"validation={n_folds} must be at least 2 and at most the number of rows, "
                    f"{n_rows}"
                )
            splitter = KFold(n_folds, shuffle=True, random_state=rng)
            folds = list(splitter.split(np.zeros((n_rows, 1))))
        elif isinstance(self.validation, Real):
            once = ShuffleSplit(1, test_size=float(self.validation), random_state=rng)
            folds = list(once.split(np.zeros((n_rows, 1))))
        else:  # these name rows as they were given
            place, every = np.cumsum(rows.used) - 1, np.arange(len(rows.used))
            splits = check_cv(self.validation).split(np.zeros((len(every), 1)))
            named = [[every[np.asarray(part)] for part in split] for split in splits]
            folds = [
                (place[fitted[rows.used[fitted]]], place[others[rows.used[others]]])
                for fitted, others in named
            ]
        if not folds:
            raise ValueError("validation gave no splits (an iterator can be used only once)")
        for fitted, others in folds:
            if not (len(fitted) and len(others)):
                raise ValueError("validation leaves a fold without rows to fit or to judge by")
            known = rows.design.observed
            if known is not None and not known[fitted].any(axis=0).all():
                raise ValueError(
                    "validation leaves a fold without any known value of a target; use fewer folds"
                )
        return folds

    # -- rows ------------------------------------------------------------------------------------

    def _can_continue(self) -> bool:
        """Whether the model has its training rows, with a network whose weights it has."""
        network = getattr(self, "_network", None)
        return network is not None and network.has_model_weights

    def _rows_of(
        self,
        X: Inputs,
        T: Array,
        w: Array,
        design: Callable[[Inputs, Array, Array], Design],
    ) -> TrainingRows:
        used = usable_rows(T, w)
        rows = slice(None) if used.all() else used
        # Copies: the caller may change these arrays before the model grows.
        return TrainingRows(design(X[rows].copy(), T[rows], w[rows]), T.copy(), used, X[~used])

    def _more_rows(self, X: object, y: object, sample_weight: object) -> TrainingRows:
        """Validate rows, and scale them as in the first fit."""
        checked = self._validate_new(X)
        T, w = self._targets_again(checked, y, sample_weight)
        return self._rows_of(checked, T, w, self._scaled)

    def _adopt(self, network: GrowingNetwork[Solver], rows: TrainingRows, found: Weights) -> None:
        """Make the network's weights the model's, and score the rows by them."""
        self.hidden_ = network.layer
        self._remember(found)
        design, used = rows.design, rows.used
        residuals = np.empty(rows.T.shape)
        residuals[used] = design.residuals(network.outputs(self.coef_))
        if not used.all():
            residuals[~used] = self._residuals(rows.unused, rows.T[~used])
        scores = row_scores(residuals, rows.T)
        self._score(scores, used, design.w, design.typical_size())
        self._network, self._training_rows, network.has_model_weights = network, rows, True


def _count(n_new: object) -> int:
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


class GrowingNetwork(Generic[Solver]):
    """A hidden layer over some of the training rows, and the solver of its output weights.

    Parameters
    ----------
    make : callable
        Makes a solver of H, T, omega and the known target cells.
    layer : HiddenLayer
        The first nodes.
    every : Design
        All training rows; radial nodes take their centres from these.
    rows : array of int, optional
        Those that the network is fitted to; None: all.
    """

    def __init__(
        self,
        make: MakeSolver[Solver],
        layer: HiddenLayer,
        every: Design,
        rows: Indices | None = None,
    ) -> None:
        self.layer, self._every = layer, every
        self.design = every if rows is None else every.take(rows)
        self.solver = self._start(make) if layer.n_outputs else None
        self.has_model_weights = False  # whether the model's weights belong to these nodes

    def _start(self, make: MakeSolver[Solver]) -> Solver:
        design = self.design
        return make(design.hidden(self.layer), design.T, design.omega, design.observed)

    def grow(self, make: MakeSolver[Solver], n_new: int, guide: SubsetGuide | None = None) -> None:
        """Add nodes to the layer and to the solver."""
        self.has_model_weights = False
        every, n_old = self._every, self.layer.n_outputs
        self.layer = self.layer.grow(
            n_new, X=every.X, sample_weight=every.w, offset=every.offset, guide=guide
        )
        if self.solver is None:
            self.solver = self._start(make)
        else:
            new = self.layer.keep(np.arange(n_old, self.layer.n_outputs))
            self.solver.extend(self.design.hidden(new))

    def prune(self, coef: Array) -> None:
        """Remove the nodes without weights."""
        active = np.flatnonzero(coef.any(axis=1))
        if len(active) == len(coef):
            return
        self.has_model_weights = False
        self.layer = self.layer.keep(active)
        if self.solver is not None and len(active):
            self.solver.keep(active)
        else:
            self.solver = None

    def guide(self, coef: Array) -> SubsetGuide | None:
        """Return which inputs nodes with these weights use; None where all nodes see all."""
        if self.layer.subsets is None:
            return None
        n_linked, design = len(self.layer.inputs), self.design
        active = n_linked + np.flatnonzero(coef[n_linked:].any(axis=1))
        nodes = self.layer.keep(active)
        H = nodes.transform(design.X, offset=design.offset)
        return explained_by_subset(nodes, H, coef[active], design.w)

    def outputs(self, coef: Array) -> Array:
        """Return H times the weights."""
        return np.zeros(self.design.T.shape) if self.solver is None else self.solver.outputs(coef)

    def count_active(self, coef: Array) -> int:
        """Return the number of nodes (not of directly linked inputs) with a weight."""
        return int(np.count_nonzero(coef[len(self.layer.inputs) :].any(axis=1)))

    def error(self, coef: Array) -> float:
        """Return the mean error norm of the rows, as a share of that of the medians."""
        residuals = self.design.residuals(self.outputs(coef))
        return _ratio(_sum_of_norms(self.design, residuals), self._error_of_medians)

    @cached_property
    def _error_of_medians(self) -> float:
        return _error_of_medians(self.design, self.design)

    def validation_error(self, coef: Array, others: Design) -> tuple[float, float]:
        """Return the sum of error norms over other rows, and that of these rows' medians."""
        residuals = others.residuals(others.hidden(self.layer) @ coef)
        return _sum_of_norms(others, residuals), _error_of_medians(others, self.design)


@dataclass
class TrainingRows:
    """The training rows as given: those that count, scaled, and the others."""

    design: Design
    T: Array
    used: Mask
    unused: Inputs  # of the rows that do not count

    def same_as(self, other: TrainingRows) -> bool:
        """Return whether the other has the same rows."""
        one, two = self.design, other.design
        if one.X.shape != two.X.shape or not np.array_equal(self.T, other.T, equal_nan=True):
            return False
        return np.array_equal(one.w, two.w) and not (one.X != two.X).sum()


def _sum_of_norms(design: Design, residuals: Array) -> float:
    return float(design.w @ row_norms(residuals))


def _error_of_medians(design: Design, source: Design) -> float:
    """Return the sum of error norms of predicting each target's median over `source`."""
    T = source.T if source.omega is None else source.T / source.omega[:, None]
    known = np.ones(T.shape, dtype=bool) if source.observed is None else source.observed
    medians = [
        float(weighted_quantiles(t[k], 0.5, source.w[k])) if k.any() else 0.0
        for t, k in zip(T.T, known.T, strict=True)
    ]
    omega = 1.0 if design.omega is None else design.omega[:, None]
    return _sum_of_norms(design, design.residuals(omega * np.array(medians)[None]))


def _ratio(error: float, unit: float) -> float:
    """Return error / unit; where the medians have no error, any error is infinitely larger."""
    if unit > 0:
        return float(error / unit)
    return 0.0 if error <= 0 else float("inf")
