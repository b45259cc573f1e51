r"""The remaining time of a long computation, estimated from its plan and from measured passes.

A plan is a list of `Work`: passes over all rows, and other work whose time grows with their number.
The seconds of one are

.. math:: N r + n (L w h + L^2 g) \quad\text{(sums)}, \qquad N r + n L w h \quad\text{(outputs)},

for N rows, n of which are used, and L hidden outputs of weight w (a cosine takes several times as
long as a tanh); to compare layers on n rows takes a time in proportion to n L^2; other kinds take a
constant time per row and column. Each constant starts as a
guess and is then measured, by a trial before the work begins and by every pass. Work that may not
be needed counts with its probability.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from statistics import median

# Seconds for every row (and column, hidden output, or pair of those) of kinds of work; guesses, in
# proportions measured on one machine.
GUESSES = {
    "learn": 7e-8,
    "read": 5e-7,
    "outputs": 8e-9,
    "sums": 3.5e-11,
    "compare": 5e-11,
    "judge": 2.7e-7,
    "rank": 1.2e-6,
    "write": 1.7e-6,
}
RECENT = 3  # measurements of which a rate is the median: other work on a machine comes and goes
# Share of a pass, or seconds, from which on it says how long the whole takes.
SURE, SURE_SECONDS = 0.1, 5.0
OWN = 0.2  # share of a pass that is the work of its kind, from which on it tells about this kind


@dataclass(frozen=True)
class Work:
    """A part of a plan."""

    step: str
    kind: str  # of GUESSES
    rows: float  # worked on
    size: float = 1.0  # columns, or hidden outputs
    chance: float = 1.0  # that it will be done at all
    weight: float | None = None  # of a hidden output; None: as usual


@dataclass(frozen=True)
class Status:
    """How far the work is."""

    step: str
    n_done: int  # passes
    n_left: float  # passes, as expected
    seconds: float  # so far
    left: float  # seconds, as expected


@dataclass
class Meter:
    """Follows a plan and reports the progress to a function.

    Parameters
    ----------
    told : callable
        Called with a `Status`, at most once in `every` seconds.
    every : float, default=1.0
        Seconds.
    clock : callable
        Returns seconds.
    """

    told: Callable[[Status], None]
    every: float = 1.0
    clock: Callable[[], float] = time.perf_counter
    n_rows: int = 0
    step: str = "reading"
    weight: float = 1.0  # usual one, of a hidden output
    weights: dict[str, float] = field(default_factory=dict)  # of the outputs of activations
    _left: list[Work] = field(default_factory=list)
    _measured: dict[str, list[float]] = field(default_factory=dict)
    _now: Work | None = None
    _since: float = 0.0
    _share: float = 0.0  # of the pass that is under way
    _n_done: int = 0
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._start = self._last = self.clock()

    # -- the plan --------------------------------------------------------------------------------

    def expect(self, work: Sequence[Work], n_rows: int) -> None:
        """Set the plan of a fit."""
        self.n_rows = n_rows
        self._left = [*work, *self._left]

    def expect_after(self, work: Sequence[Work]) -> None:
        """Set the plan of the work after a fit."""
        self._left += work

    def begin(self, step: str) -> None:
        """Begin a step; planned work of the step before that was not needed is dropped."""
        self._left = [work for work in self._left if work.step != self.step or step == self.step]
        self.step = step

    def settle(self, step: str, chance: float) -> None:
        """Set the probability of the optional work of a step: 1 certain, 0 never."""
        self._left = [
            replace(work, chance=chance) if work.step == step and work.chance < 1.0 else work
            for work in self._left
            if chance > 0.0 or work.step != step or work.chance == 1.0
        ]

    def foresee(self, step: str, kind: str, rows: float) -> None:
        """Say how many rows a kind of work in a step will be about."""
        self._left = [
            replace(work, rows=rows) if (work.step, work.kind) == (step, kind) else work
            for work in self._left
        ]

    def measured(self, kind: str, rate: float) -> None:
        """Note the seconds for every row, and column or hidden output."""
        self._measured[kind] = [*self._measured.get(kind, []), rate][-RECENT:]

    # -- what is done ----------------------------------------------------------------------------

    @contextmanager
    def doing(
        self, kind: str, rows: float, size: float, weight: float | None = None
    ) -> Iterator[None]:
        """Measure a part of the plan; what is done within it is a part of it."""
        if self._now is not None:
            yield
            return
        planned = next((w for w in self._left if (w.step, w.kind) == (self.step, kind)), None)
        if planned is not None:
            self._left.remove(planned)
        self._now = Work(self.step, kind, rows, size, weight=weight)
        self._since, self._share = self.clock(), 0.0
        self._tell()
        try:
            yield
            self._learn(self._now, self.clock() - self._since)
        finally:
            self._now = None
        self._n_done += kind in ("read", "outputs", "sums")
        self._tell()

    def tick(self, share: float) -> None:
        """Note how much of a pass is done."""
        self._share = share
        self._tell()

    def _learn(self, work: Work, seconds: float) -> None:
        own, cost = self._own(work), self._cost(work)
        if own > 0 and (own >= OWN * cost or work.kind not in self._measured):
            # What is left of a small difference says nothing.
            rest = max(seconds - (cost - own), 0.01 * seconds)
            self.measured(work.kind, self._rate(work.kind) * rest / own)

    def _rate(self, kind: str) -> float:
        """Return what was measured, or a guess in proportion to what was measured of others."""
        if kind in self._measured:
            return median(self._measured[kind])
        ratios = [median(rates) / GUESSES[other] for other, rates in self._measured.items()]
        return GUESSES[kind] * (median(ratios) if ratios else 1.0)

    def _own(self, work: Work) -> float:
        """Return the seconds of what only this kind of work does."""
        power = 2 if work.kind in ("sums", "compare") else 1
        rows = self.n_rows if work.kind == "read" else work.rows
        weight = self._weight(work) if work.kind == "outputs" else 1.0
        return self._rate(work.kind) * rows * work.size**power * weight

    def _weight(self, work: Work) -> float:
        return self.weight if work.weight is None else work.weight

    def _cost(self, work: Work) -> float:
        seconds = self._own(work)
        if work.kind in ("outputs", "sums"):
            seconds += self._rate("read") * self.n_rows
        if work.kind == "sums":
            seconds += self._rate("outputs") * work.rows * work.size * self._weight(work)
        return seconds

    # -- what is left ----------------------------------------------------------------------------

    def left(self) -> float:
        """Return the seconds that the rest of the plan will take."""
        measured = dict(self._measured)
        seconds = 0.0
        if self._now is not None:
            spent, expected = self.clock() - self._since, self._cost(self._now)
            if self._share > SURE or (self._share > 0 and spent > SURE_SECONDS):
                whole = spent / self._share
                seconds += whole - spent
                self._learn(self._now, whole)
            else:
                seconds += max(expected - spent, 0.0)
        seconds += sum(work.chance * self._cost(work) for work in self._left)
        self._measured = measured
        return seconds

    def _tell(self) -> None:
        now = self.clock()
        if now - self._last < self.every or not self.n_rows:  # nothing is planned yet
            return
        self._last = now
        passes = sum(w.chance for w in self._left if w.kind in ("read", "outputs", "sums"))
        passes += self._now is not None
        self.told(Status(self.step, self._n_done, passes, now - self._start, self.left()))


_meter: ContextVar[Meter | None] = ContextVar("meter", default=None)


def meter() -> Meter | None:
    """Return the meter of this thread, or None."""
    return _meter.get()


@contextmanager
def following(meter: Meter) -> Iterator[None]:
    """Report the work in the block to a meter."""
    token = _meter.set(meter)
    try:
        yield
    finally:
        _meter.reset(token)


def begin(step: str) -> None:
    """Report the begin of a step to this thread's meter, if there is one."""
    if (current := _meter.get()) is not None:
        current.begin(step)


def settle(step: str, chance: float) -> None:
    """Report how probable the optional work of a step is, if there is a meter."""
    if (current := _meter.get()) is not None:
        current.settle(step, chance)


def foresee(step: str, kind: str, rows: float) -> None:
    """Set the number of rows of a kind of work in a step, if there is a meter."""
    if (current := _meter.get()) is not None:
        current.foresee(step, kind, rows)


def doing(kind: str, rows: float, size: float = 1.0) -> AbstractContextManager[None]:
    """Measure the work in the block, if there is a meter."""
    current = _meter.get()
    return nullcontext() if current is None else current.doing(kind, rows, size)
