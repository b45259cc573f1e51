"""Every owner of rows runs the same loop: the same optimum, certificate and iterates.

One table lists the owners, each with its tolerance. Those of PyTorch run on the CPU, and on a GPU
too where there is one (`make test-gpu`).
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gorelm import stream
from gorelm._features.layer import HiddenLayer
from gorelm._features.scaling import Scaling
from gorelm._solver.admm import PAPER, Settings
from gorelm._solver.far_targets import NormSummary, bring_near
from gorelm._solver.prepared import solve, solve_rows
from gorelm._solver.problem import Problem
from gorelm._solver.rows import MemoryRows
from gorelm.backends.streamed import HiddenBlocks, StreamedRows
from gorelm.stream import RowBlocks
from support.oracles import Case, by_interior_point, draw, objective, scaled

PROBLEMS = {
    "l21": {"l2": 0.7},
    "l21 sparse": {"tau": 1.5, "l1": 0.6, "l2": 0.4},
    "l21 huber": {"l1": 0.3, "l2": 0.5, "delta": 0.3},
    "l1": {"loss": "l1", "l2": 0.5},
    "squared": {"loss": "squared", "tau": 2.0, "l2": 1.0},
    "squared sparse": {"loss": "squared", "tau": 2.0, "l1": 0.8, "l2": 0.3},
}
problems = pytest.mark.parametrize("name", PROBLEMS)
DATA = {
    "plain": {},
    "weighted": {"weighted": True},
    "missing": {"weighted": True, "missing": True},
}


def streamed(H, T, omega, observed, dtype=np.float64, memory=0.0):
    """H as what a layer of direct links makes of the inputs H."""
    layer = HiddenLayer.draw(0, H.shape[1], direct_link=True, random_state=0)
    unscaled = Scaling.fit(None, H, np.ones(len(H)))
    # H is multiplied by omega already.
    blocks = HiddenBlocks(
        RowBlocks.from_array(H),
        np.ones(len(H), bool),
        unscaled,
        layer,
        None,
        memory=memory,
        dtype=dtype,
    )
    return StreamedRows(blocks, T, omega, observed)


def on_torch(H, T, omega, observed, device="cpu", dtype="float64", blocks=False):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    from gorelm.backends.torch.rows import TorchRows

    def there(A, kind):
        return None if A is None else torch.tensor(A, device=device, dtype=kind)

    n_hidden, kind = H.shape[1], getattr(torch, dtype)
    if dtype == "float32":  # in the layout of the fused kernels
        H = np.pad(H, ((0, 0), (0, -n_hidden % 64)))
    whole = there(H, kind)
    parts = there(T, kind), n_hidden, there(omega, kind), there(observed, torch.bool)
    return TorchRows((lambda rows: whole[rows]) if blocks else whole, *parts)


OPENED = ExitStack()  # left at the end of every test


def on_dask(H, T, omega, observed):
    """Three partitions on two workers, H again as a layer of direct links."""
    pytest.importorskip("distributed", reason="dask is not installed")
    import dask.array as da
    from distributed import get_client

    from gorelm import GORELMRegressor
    from gorelm.backends.dask import fit as backend

    model = GORELMRegressor(
        n_hidden=0, direct_link=True, input_scaling=None, target_scaling=None, random_state=0
    )
    root = np.ones(len(H)) if omega is None else omega
    y = np.where(True if observed is None else observed, T / root[:, None], np.nan)
    X, y, w = (da.from_array(A, chunks=23) for A in (H / root[:, None], y, root**2))
    X, y = (A.rechunk((23, -1)) for A in (X, y))
    client = get_client()
    source, options = backend.DaskSource(X, y, w), backend.Options.from_config()
    coordinator = OPENED.enter_context(backend.Coordinator(client, source, options))
    lengths, n_used, m = backend._accepted(coordinator, source, ignore=True)
    model._input_scaling = Scaling.fit(None, H, root)
    model._target_scaling = backend._target_scaling(coordinator, None, lengths, m)
    model.hidden_ = model._draw(H.shape[1])
    coordinator.call("prepare", backend._without_results(model), np.inf, mutates=True, setup=True)
    return backend.DaskRows(coordinator, n_used, H.shape[1], m)


@dataclass(frozen=True)
class Owner:
    """How to make an owner of rows, and how far it may be from rows in memory."""

    make: Callable[..., Any]
    rtol: float = 1e-10  # of iterates, relative to their largest element
    tol: float = 1e-6  # of certified gaps


OWNERS = {
    "memory": Owner(MemoryRows, rtol=0.0),
    "streamed": Owner(streamed),
    "torch cpu": Owner(on_torch),
    "torch cpu blocks": Owner(partial(on_torch, blocks=True)),
    "torch cpu float32": Owner(partial(on_torch, dtype="float32"), rtol=3e-5, tol=1e-3),
    "torch cuda": Owner(partial(on_torch, device="cuda")),
    "torch cuda blocks": Owner(partial(on_torch, device="cuda", blocks=True)),
    "torch cuda float32": Owner(
        partial(on_torch, device="cuda", dtype="float32"), rtol=3e-5, tol=1e-3
    ),
    "dask": Owner(on_dask),
}
owners = pytest.mark.parametrize("owner", OWNERS)


@pytest.fixture(autouse=True)
def current_client(request):
    """The cluster, for tests of the owner that needs it."""
    if "owner" in request.fixturenames and request.getfixturevalue("owner") == "dask":
        with request.getfixturevalue("client_of_threads").as_current(), OPENED:
            yield
    else:
        yield


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a size that divides nothing here."""
    monkeypatch.setattr(stream, "BLOCK_ROWS", 7)
    try:
        from gorelm.backends.torch import rows as module
    except ImportError:
        return
    monkeypatch.setattr(module, "BLOCK_ROWS", 11)


@cache
def case_of(name, kind, n=60, n_hidden=20):
    H, T, w, observed = draw(11, n, n_hidden, **DATA[kind])
    return Case(H, T, weights=w, observed=observed, **{"l2": 0.0, **PROBLEMS[name]})


@cache
def optimum_of(name, kind):
    return by_interior_point(case_of(name, kind))[1]


def problem_of(case):
    return Problem(case.loss, case.tau, case.l1, case.l2, case.delta, case.grouped)


def run(owner, case, **settings):
    rows = OWNERS[owner].make(*scaled(case))
    settings = Settings(**{"tol": OWNERS[owner].tol, **settings})
    return solve_rows(rows, problem_of(case), settings=settings)


def assert_same_iterates(one, other, owner):
    assert one.n_iter == other.n_iter
    atol = OWNERS[owner].rtol * np.abs(one.coef).max()
    np.testing.assert_allclose(other.coef, one.coef, rtol=0, atol=atol)


@pytest.mark.crossed("owner", "name")
@pytest.mark.parametrize(
    ("owner", "kind"),
    [
        pytest.param(owner, kind, marks=[] if kind == "missing" else pytest.mark.slow)
        for owner in OWNERS
        for kind in DATA
    ],
)
@problems
def test_optimum_is_that_of_an_interior_point_solver(owner, name, kind):
    case, tol = case_of(name, kind), OWNERS[owner].tol
    found = run(owner, case, max_iter=50_000)
    assert found.status == ["converged"]
    value, optimum = objective(case, found.coef[:, 0]), optimum_of(name, kind)
    rounding = 1e-3 * tol
    assert found.objective[0] == pytest.approx(value, rel=rounding)
    assert value == pytest.approx(optimum, rel=tol)
    assert found.bound[0] <= optimum * (1 + rounding)
    assert (value - found.bound[0]) / value <= tol + rounding


@cache
def steps_in_memory(name, kind, steps):
    return run("memory", case_of(name, kind), stop="never", max_iter=steps)


@owners
@problems
def test_iterates_are_those_in_memory(owner, name):
    """At a given number of iterations, whatever the owner checks when."""
    for kind, steps in product(("weighted", "missing"), (2, 13, 45)):  # penalties adapt at 40
        found = run(owner, case_of(name, kind), stop="never", max_iter=steps)
        assert_same_iterates(steps_in_memory(name, kind, steps), found, owner)


@owners
def test_iterates_of_the_published_configuration(owner):
    case = case_of("l21 sparse", "weighted")
    rows = [OWNERS[name].make(*scaled(case)) for name in ("memory", owner)]
    assert_same_iterates(*(solve_rows(r, problem_of(case), settings=PAPER) for r in rows), owner)


@owners
def test_without_ridge_the_bound_is_corrected(owner):
    case = Case(*draw(12, 60, 20)[:2], l1=1.0, l2=0.0)
    tol = max(1e-5, OWNERS[owner].tol)
    one, other = (run(name, case, tol=tol, max_iter=50_000) for name in ("memory", owner))
    assert other.status == ["converged"]
    assert other.objective[0] == pytest.approx(one.objective[0], rel=2 * tol)


@pytest.mark.crossed
@owners
@pytest.mark.parametrize("sparse", [False, True])
def test_batches(owner, sparse):
    H, T, omega, observed = scaled(case_of("l21", "missing"))
    lams = np.array([0.1, 10.0, 1.0])
    batch = Problem("l21", 1.0, 0.3 * lams if sparse else 0.0, 0.7 * lams)
    settings = Settings(tol=OWNERS[owner].tol)
    found = solve_rows(OWNERS[owner].make(H, T, omega, observed), batch, settings=settings)
    for p in range(3):
        one = batch.select(np.array([p]))
        alone = solve(H, T, one, omega=omega, observed=observed, settings=Settings(tol=1e-6))
        assert found.objective[p] == pytest.approx(alone.objective[0], rel=2 * settings.tol)


@owners
def test_one_far_row_does_not_decide_the_scale(owner):
    case = case_of("l21", "plain")
    T = case.T.copy()
    T[3] = 1e12
    if OWNERS[owner].tol > 1e-6:  # float32: what the preparation of rows does
        T = np.asarray(bring_near(T, problem_of(case), None, "f4"), dtype=float)
    far = Case(case.H, T, l2=0.7)
    one, other = (run(name, far) for name in ("memory", owner))
    assert other.status == ["converged"]
    atol = max(1e-3, 30 * OWNERS[owner].tol) * np.abs(one.coef).max()
    np.testing.assert_allclose(other.coef, one.coef, atol=atol)


@given(cut=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 99))
def test_summaries_of_norms_add_up(cut, seed):
    rng = np.random.default_rng(seed)
    T = rng.standard_normal((40, 3)) * 10.0 ** rng.integers(-20, 20, (40, 1))
    T[rng.random(40) < 0.2] = 0.0
    omega = rng.uniform(0.5, 2, 40)
    problem = Problem("l21", 1.0, 0.0, 1.0)
    ends = [0, *sorted(cut), 40]
    parts = [NormSummary.of(T[a:b], problem, omega[a:b]) for a, b in pairwise(ends)]
    together = NormSummary(sum(p.weights for p in parts), sum(p.logs for p in parts))
    assert together.typical == pytest.approx(NormSummary.of(T, problem, omega).typical)


def test_typical_norm_is_a_geometric_mean():
    T = np.array([[1.0], [4.0], [16.0], [0.0]])
    problem = Problem("l21", 1.0, 0.0, 1.0)
    assert NormSummary.of(T, problem, None).typical == pytest.approx(4.0)
    rounding = np.vstack([np.repeat(T[:3], 10, axis=0), [[1e-30]]])
    assert NormSummary.of(rounding, problem, None).typical == pytest.approx(4.0)


@pytest.mark.parametrize("n_rows", [1, 6, 7, 8, 60])
def test_results_do_not_depend_on_blocks_or_on_what_is_kept(n_rows):
    H, T, _, _ = draw(13, 60, 9)
    H, T = H[:n_rows], T[:n_rows]
    problem, settings = Problem("l21", 1.0, 0.0, 1.0), Settings(tol=1e-6)
    expected = solve_rows(MemoryRows(H, T), problem, settings=settings)
    for memory in (0.0, 2000.0, 1e9):
        rows = streamed(H, T, None, None, memory=memory)
        found = solve_rows(rows, problem, settings=settings)
        assert found.n_iter == expected.n_iter
        np.testing.assert_allclose(found.coef, expected.coef, atol=1e-11)


def test_every_iteration_reads_the_rows_once():
    H, T, _, _ = draw(14, 60, 9)
    rows = streamed(H, T, None, None)
    found = solve_rows(
        rows, Problem("l21", 1.0, 0.0, 1.0), settings=Settings(stop="never", max_iter=25)
    )
    # Besides: H'H with H'T, and H'U for the certificate at the end.
    assert rows.H.n_passes == found.n_iter[0] + 2


def test_float32_blocks_reach_the_certified_gap():
    H, T, _, _ = draw(15, 200, 20)
    problem = Problem("l21", 1.0, 0.0, 1.0)
    found = solve_rows(streamed(H, T, None, None, dtype=np.float32), problem)
    exact = solve(H, T, problem, settings=Settings(tol=1e-8))
    assert found.dual_gap[0] <= 1e-3
    assert found.objective[0] == pytest.approx(exact.objective[0], rel=1e-3)


def test_a_loss_leaves_the_caps_of_a_captured_step_where_they_are():
    """A CUDA graph reads them there for as long as it is replayed."""
    H, T, _, _ = draw(16, 30, 5)
    rows, problem = on_torch(H, T, None, None), Problem("l21", 1.0, 0.0, 1.0)
    cap = np.ones(1)
    there = rows._there(cap)
    rows.loss(np.zeros((5, 1, T.shape[1])), problem, cap[[True]])
    assert rows._there(cap) is there


def test_tensors_of_a_path_are_laid_out_in_rows():
    """The fused kernels go through them so."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from gorelm.backends.torch.path import tensor_problem

    H, T, _, _ = draw(17, 30, 5)
    problem = Problem("l21", [1.0, 1.0], 0.0, 1.0)
    for omega in (None, np.full(30, 2.0)):
        across = (torch.tensor(np.ascontiguousarray(A.T)).T for A in (H, T))
        prepared = tensor_problem(*across, problem, omega, 1e-3)
        assert prepared.H.is_contiguous()
        assert prepared.T.is_contiguous()
