"""How long the rest of a plan takes, from what its parts took."""

from dataclasses import replace

import numpy as np
import pytest

from gorelm import RobustELMRegressor
from gorelm._features.joint import JointLayer
from gorelm._features.scaling import Scaling
from gorelm._progress import Meter, Work, doing, following, meter
from gorelm.backends.inputs import InMemory
from gorelm.backends.streamed_inputs import StreamedInputs
from gorelm.datasets import make_multitarget
from gorelm.estimators._robust import plan as planning
from gorelm.estimators._robust import screen
from gorelm.estimators._robust.layers import Layer
from gorelm.estimators._robust.task import EFFORTS
from gorelm.stream import RowBlocks

N = 1000


class Machine:
    """A clock that moves as work is done, at rates of its own."""

    def __init__(self, read, outputs, sums):
        self.now, self.rates = 0.0, {"read": read, "outputs": outputs, "sums": sums}

    def seconds(self, kind, rows, size):
        read = self.rates["read"] * N
        if kind == "read":
            return read
        both = read + self.rates["outputs"] * rows * size
        return both if kind == "outputs" else both + self.rates["sums"] * rows * size**2

    def do(self, meter, kind, rows, size):
        with meter.doing(kind, rows, size):
            for tenth in range(1, 11):
                self.now += self.seconds(kind, rows, size) / 10
                meter.tick(tenth / 10)


@pytest.mark.parametrize("rates", [(1e-3, 1e-5, 1e-8), (1e-2, 1e-6, 1e-9), (1e-5, 1e-5, 1e-6)])
def test_the_time_left_is_right_once_every_kind_was_measured(rates):
    machine, said = Machine(*rates), []
    follower = Meter(lambda s: said.append((s, machine.now)), 0.0, lambda: machine.now)
    work = [("read", N, 1), ("outputs", N, 50), ("sums", N, 200), ("outputs", N, 300)] * 2
    work.append(("sums", 0.9 * N, 250))
    follower.expect([Work("fit", *one) for one in work], N)
    follower.begin("fit")
    for one in work:
        machine.do(follower, *one)
    end = machine.now
    after = sum(machine.seconds(*one) for one in work[:4])
    late = [(status.left, end - at) for status, at in said if at >= after]
    assert len(late) > 40
    for left, true in late:
        assert left == pytest.approx(true, rel=0.05, abs=1e-6 * end)
    assert said[-1][0].n_done == len(work)


def test_what_may_be_necessary_counts_with_its_chance():
    machine = Machine(1.0 / N, 0.0, 0.0)
    follower = Meter(lambda _: None, 0.0, lambda: machine.now)
    maybe = Work("a", "read", 0.0, chance=0.5)
    follower.expect([Work("a", "read", 0.0), maybe, maybe, Work("b", "read", 0.0)], N)
    follower.expect_after([Work("c", "read", 0.0)])
    follower.begin("a")
    machine.do(follower, "read", 0.0, 1.0)
    assert follower.left() == pytest.approx(3.0)
    follower.settle("a", 0.1)
    assert follower.left() == pytest.approx(2.2)
    follower.settle("a", 1.0)
    assert follower.left() == pytest.approx(4.0)
    follower.begin("b")
    assert follower.left() == pytest.approx(2.0)
    follower.begin("c")
    assert follower.left() == pytest.approx(1.0)


def test_outputs_that_take_longer_count_for_more():
    """A rate is of outputs of weight 1, whatever was measured: of cosines, or of tanhs."""
    machine = Machine(0.0, 1e-3, 0.0)
    follower = Meter(lambda _: None, 0.0, lambda: machine.now)
    work = [Work("a", "outputs", N, 10, weight=4.0), Work("a", "outputs", N, 10)]
    follower.expect([*work, Work("b", "sums", 0.5 * N, 10)], N)
    for kind, rate in {"read": 1e-12, "outputs": 1e-3, "sums": 1e-12}.items():
        follower.measured(kind, rate)
    follower.begin("a")
    follower.weight = 2.0
    with follower.doing("outputs", N, 10, 4.0):
        machine.now += 40.0
    assert follower.left() == pytest.approx(20.0 + 10.0, rel=0.02)
    follower.weight = 1.0
    assert follower.left() == pytest.approx(10.0 + 5.0, rel=0.02)
    follower.foresee("b", "sums", N)
    assert follower.left() == pytest.approx(10.0 + 10.0, rel=0.02)


def test_one_slow_pass_does_not_change_what_is_expected_of_others():
    machine = Machine(0.0, 1e-3, 0.0)
    follower = Meter(lambda _: None, 0.0, lambda: machine.now)
    follower.measured("read", 1e-12)
    follower.expect([Work("a", "outputs", N, 10)] * 6, N)
    follower.begin("a")
    for slower, left in [(1, 50), (1, 40), (4, 30), (1, 20), (4, 40)]:
        with follower.doing("outputs", N, 10):
            machine.now += 10.0 * slower
        assert follower.left() == pytest.approx(left, rel=0.01)


def test_a_pass_that_is_mostly_reading_tells_nothing_about_sums():
    machine = Machine(0.0, 0.0, 0.0)
    follower = Meter(lambda _: None, 0.0, lambda: machine.now)
    for kind, rate in (("read", 1e-3), ("outputs", 0.0), ("sums", 1e-6)):
        follower.measured(kind, rate)
    follower.expect([Work("a", "sums", 10, 10), Work("a", "sums", N, 10)], N)
    follower.begin("a")
    with follower.doing("sums", 10, 10):
        machine.now += 2e-3 * N  # reading took twice as long
    assert follower.left() == pytest.approx(1e-3 * N + 1e-6 * N * 10**2, rel=0.01)


def test_a_trial_knows_which_outputs_take_longer(monkeypatch):
    """In units of one activation; a joint layer has the average of its parts."""
    follower = Meter(lambda _: None)
    planning.try_out(follower, 60, 5, 2, 1)
    assert follower.weights[planning.UNIT] == 1.0
    assert all(weight > 0 for weight in follower.weights.values())
    x = np.random.default_rng(0).normal(size=(50, 5))
    follower.weights |= {"cosine": 5.0, "tanh": 1.0}
    rows = planning.Measured(InMemory(x), follower)
    parts = [Layer(name, 1.0, False).draw(10, 0, x) for name in ("cosine", "tanh")]
    follower.step, follower.weight = "search", 1.0
    rows.outputs(parts[0], [np.arange(50)], [np.zeros((11, 1))])
    assert follower.weight == 3.0
    assert rows._weight_of(JointLayer(tuple(parts), np.ones(2))) == 3.0
    follower.step = "screen"
    rows.outputs(parts[0], [np.arange(50)], [np.zeros((11, 1))])
    assert follower.weight == 3.0


def test_a_sample_that_is_asked_for_again_is_not_read_again():
    x = np.random.default_rng(0).normal(size=(200, 3))
    blocks = RowBlocks.from_array(x)
    said = []
    far = StreamedInputs(blocks, Scaling.fit("standard", x, np.ones(200)))
    rows = planning.Measured(far, Meter(said.append))
    some = np.array([3, 50, 7])
    first = rows.take(some)
    rows.take(some)[:] = 0.0  # what is given out is not what is remembered
    assert np.array_equal(rows.take(some), first)
    assert np.array_equal(far.take(some), first)
    assert blocks.n_passes == 1
    assert np.array_equal(rows.take(some[::-1]), first[::-1])
    assert blocks.n_passes == 2


def test_a_pass_under_way_says_how_long_it_takes():
    machine = Machine(1.0, 0.0, 0.0)
    follower = Meter(lambda _: None, 0.0, lambda: machine.now)
    follower.expect([Work("a", "read", 0.0)] * 3, N)
    follower.begin("a")
    with follower.doing("read", 0.0, 1.0):
        machine.now += 4.0
        follower.tick(0.04)  # too little to know
        assert follower.left() < 1.0
        machine.now += 2.0
        follower.tick(0.06)  # little, but some seconds
        assert follower.left() == pytest.approx(94.0 + 2 * 100.0)
        machine.now += 24.0
        follower.tick(0.3)
        assert follower.left() == pytest.approx(70.0 + 2 * 100.0)
    assert follower.left() == pytest.approx(60.0)


def test_nobody_is_told_without_a_meter_or_a_plan():
    assert meter() is None
    with doing("judge", 3, 2):
        pass
    said = []
    with following(Meter(said.append, every=0.0)), doing("judge", 3, 2):
        pass
    assert not said
    assert meter() is None


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_the_plan_of_a_fit_is_what_it_does(wrong, monkeypatch):
    """All that is planned is done, and nothing else, but for what depends on the rows."""
    data = make_multitarget(700, outlier_ratio=wrong, random_state=0)
    done, planned, said = [], [], []
    plain, measured = planning.plan, Meter.doing

    def plan(*given):
        planned.extend(plain(*given))
        return planned

    def noted(self, kind, rows, size, weight=None):
        done.append((self.step, kind))
        return measured(self, kind, rows, size, weight)

    monkeypatch.setattr(screen, "SCREEN_ROWS", 150)  # fewer than there are
    monkeypatch.setitem(EFFORTS, "fast", replace(EFFORTS["fast"], middle_rows=200))
    monkeypatch.setattr(planning, "plan", plan)
    monkeypatch.setattr(Meter, "doing", noted)
    model = RobustELMRegressor(
        n_hidden=30, effort="fast", search_rows=100, n_members=2, random_state=0
    )
    with following(Meter(said.append, every=0.0)):
        model.fit(RowBlocks.from_array(data.X), data.T)
    for step in ("screen", "search", "refine", "fit"):
        for kind in ("outputs", "sums", "judge"):
            sure = sum(w.chance == 1 and (w.step, w.kind) == (step, kind) for w in planned)
            most = sum((w.step, w.kind) == (step, kind) for w in planned)
            times = done.count((step, kind))
            assert min(sure, 1) <= times <= max(most, sure), (step, kind, times, sure, most)
    assert said[-1].left >= 0
    plainly = RobustELMRegressor(**model.get_params()).fit(RowBlocks.from_array(data.X), data.T)
    assert np.array_equal(plainly.outlier_scores_, model.outlier_scores_)
