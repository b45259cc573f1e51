import itertools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from gorelm.experiments.published import PUBLISHED_METHODS, published_results
from gorelm.experiments.statistics import (
    cliques,
    friedman,
    holm,
    mean_ranks,
    nemenyi,
    nemenyi_distance,
    wilcoxon,
)

# Area under the curve of C4.5, C4.5+m, C4.5+cf, C4.5+m+cf on 14 data sets (J. Demsar, Statistical
# comparisons of classifiers over multiple data sets, JMLR 7, 2006, Table 6). The last but one row
# prints .975 twice but ranks the two 2 and 3: unrounded they differ.
AUC = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.9751, 0.975],
        [0.957, 0.978, 0.946, 0.970],
    ]
)

errors = st.tuples(st.integers(2, 8), st.integers(3, 6)).flatmap(
    lambda shape: arrays(float, shape, elements=st.integers(0, 6).map(float))
)


def published(ratio):
    """Test aRRMSE of the paper: 15 data sets by six methods."""
    cells = {
        (r["dataset"], r["method"]): r["mean"]
        for r in published_results()
        if r["ratio"] == ratio and r["subset"] == "test"
    }
    datasets = sorted({dataset for dataset, _ in cells})
    return np.array([[cells[d, m] for m in PUBLISHED_METHODS] for d in datasets])


def test_textbook_ranks_and_friedman():
    ranks = mean_ranks(-AUC)
    np.testing.assert_allclose(ranks, [3.143, 2.000, 2.893, 1.964], atol=5e-4)
    statistic, p_value = friedman(-AUC)
    # the book's 9.28 leaves the correction for ties out: three pairs and one group of four
    ties = (3 * (2**3 - 2) + (4**3 - 4)) / (14 * 4 * (4**2 - 1))
    assert statistic * (1 - ties) == pytest.approx(9.28, abs=5e-3)
    assert p_value == pytest.approx(stats.chi2.sf(statistic, 3))


def test_textbook_critical_distances():
    assert nemenyi_distance(4, 14, 0.05) == pytest.approx(1.25, abs=5e-3)
    assert nemenyi_distance(4, 14, 0.10) == pytest.approx(1.12, abs=5e-3)
    # its Table 5: q / sqrt(2) at 5 %
    table = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 10: 3.164}
    for k, q in table.items():
        assert nemenyi_distance(k, 1) == pytest.approx(q * np.sqrt(k * (k + 1) / 6), rel=3e-4)


def test_wilcoxon_by_hand():
    # C4.5 wins on two sets, by .008 and .005; sizes without the two zeros begin
    # .005 .005 .006 .007 .008, so that its ranks are 5 and 1.5
    assert wilcoxon(AUC[:, 0], AUC[:, 1]).statistic == 6.5
    # of the 2^12 choices of ranks, 15 have a sum of at most 6.5
    assert wilcoxon(AUC[:, 0], AUC[:, 1], "less").p_value == 15 / 2**12


@pytest.mark.parametrize(
    ("ratio", "p_value", "ranks"),
    [
        (0.0, 0.95, [2.37, 2.47, 2.60, 2.57]),
        (0.2, 0.000009, [3.27, 2.00, 3.33, 1.40]),
        (0.4, 0.00027, [3.17, 2.00, 3.23, 1.60]),
    ],
)
def test_paper_friedman(ratio, p_value, ranks):
    matrix = published(ratio)[:, :4]
    np.testing.assert_allclose(mean_ranks(matrix), ranks, atol=5.1e-3)
    assert friedman(matrix).p_value == pytest.approx(p_value, rel=0.03)


def test_paper_wilcoxon():
    ir, igor = PUBLISHED_METHODS.index("IR-ELM"), PUBLISHED_METHODS.index("IGOR-ELM")
    p = [
        wilcoxon(matrix[:, igor], matrix[:, ir], "less").p_value
        for matrix in map(published, (0.0, 0.2, 0.4))
    ]
    # the text: not rejected at 10 %, 0.0014, 0.0017
    np.testing.assert_allclose(p, [0.2939, 0.00137, 0.00168], rtol=5e-3)
    # two of the differences at 20 % are equal in size; the approximation, to which scipy then
    # turns, is not close
    d = np.round(published(0.2)[:, igor] - published(0.2)[:, ir], 9)
    assert len(set(abs(d))) == 14
    assert stats.wilcoxon(d, alternative="less").pvalue == pytest.approx(0.00246, rel=5e-3)


@given(
    arrays(float, st.integers(1, 10), elements=st.integers(-4, 4).map(float)),
    st.sampled_from(["two-sided", "less", "greater"]),
)
def test_wilcoxon_counts_all_signs(d, alternative):
    value = wilcoxon(d, np.zeros_like(d), alternative)
    d = d[d != 0]
    if not len(d):
        assert value == (0.0, 1.0)
        return
    ranks = stats.rankdata(abs(d))
    seen = ranks[d > 0].sum()
    sums = [np.dot(signs, ranks) for signs in itertools.product([0, 1], repeat=len(d))]
    less, greater = np.mean(sums <= seen), np.mean(sums >= seen)
    expected = {"less": less, "greater": greater, "two-sided": min(1, 2 * min(less, greater))}
    assert value.p_value == pytest.approx(expected[alternative], rel=1e-12)


@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
def test_wilcoxon_agrees_with_scipy(alternative):
    rng = np.random.default_rng(3)
    for n in (5, 15, 40):
        a, b = rng.random((2, n))
        expected = stats.wilcoxon(a, b, alternative=alternative, method="exact")
        np.testing.assert_allclose(
            wilcoxon(a, b, alternative), (expected.statistic, expected.pvalue), rtol=1e-9
        )
    # past the limit it is scipy's approximation, and the two are close where they meet
    a, b = rng.random((2, 201))
    exact, approximate = wilcoxon(a[:200], b[:200]), wilcoxon(a, b)
    assert approximate.p_value == stats.wilcoxon(a, b, method="asymptotic").pvalue
    reference = stats.wilcoxon(a[:200], b[:200], method="asymptotic").pvalue
    assert exact.p_value == pytest.approx(reference, rel=0.02)
    assert exact.p_value != reference


def test_wilcoxon_sees_ties_through_rounding():
    assert 0.3 - 0.2 != 0.2 - 0.1
    assert wilcoxon([0.3, 0.1], [0.2, 0.2], "less").p_value == 0.75
    assert wilcoxon([0.0, 0.0], [0.0, 0.0]) == (0.0, 1.0)
    # equal in size whatever the unit
    assert wilcoxon([3e-20, 1e-20], [2e-20, 2e-20], "less").p_value == 0.75


@given(errors)
def test_friedman_agrees_with_its_formula(matrix):
    n, k = matrix.shape
    ranks = np.array(
        [[(row < x).sum() + ((row == x).sum() + 1) / 2 for x in row] for row in matrix]
    )
    np.testing.assert_allclose(mean_ranks(matrix), ranks.mean(axis=0))
    assert mean_ranks(matrix).sum() == pytest.approx(k * (k + 1) / 2)
    spread = ((ranks - (k + 1) / 2) ** 2).sum() / (n * (k - 1))
    statistic, p_value = friedman(matrix)
    if spread == 0:
        assert (statistic, p_value) == (0.0, 1.0)
        return
    between = n * ((ranks.mean(axis=0) - (k + 1) / 2) ** 2).sum()
    assert statistic == pytest.approx(between / spread, abs=1e-9)
    assert p_value == pytest.approx(stats.chi2.sf(statistic, k - 1), abs=1e-9)


def test_nemenyi_agrees_with_its_distance():
    for matrix in (-AUC, published(0.2), published(0.4)):
        p, ranks = nemenyi(matrix), mean_ranks(matrix)
        n, k = matrix.shape
        np.testing.assert_array_equal(p, p.T)
        np.testing.assert_array_equal(np.diag(p), 1)
        studentized = abs(ranks[:, None] - ranks) / np.sqrt(k * (k + 1) / (12 * n))
        expected = stats.studentized_range.sf(studentized, k, np.inf)
        np.testing.assert_allclose(p, expected, atol=2e-3)
        for alpha in (0.05, 0.1):
            distance = nemenyi_distance(k, n, alpha)
            np.testing.assert_array_equal(p < alpha, abs(ranks[:, None] - ranks) > distance)


def test_nemenyi_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scikit_posthocs", None)
    with pytest.raises(ImportError, match=r"gorelm\[experiments\]"):
        nemenyi(-AUC)


@pytest.mark.slow  # for the import of statsmodels
@given(arrays(float, st.integers(0, 8), elements=st.floats(0, 1)))
def test_holm_agrees_with_statsmodels(p):
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    expected = multitest.multipletests(p, method="holm")[1] if len(p) else p
    np.testing.assert_allclose(holm(p), expected, rtol=1e-12, atol=1e-300)


@given(
    st.lists(st.integers(2, 20).map(lambda i: i / 2), max_size=7),
    st.integers(1, 12).map(lambda i: i / 2),
)
def test_cliques_are_the_largest_groups(ranks, distance):
    found = [frozenset(group) for group in cliques(ranks, distance)]
    fits = [
        frozenset(group)
        for size in range(2, len(ranks) + 1)
        for group in itertools.combinations(range(len(ranks)), size)
        if max(ranks[j] for j in group) - min(ranks[j] for j in group) < distance
    ]
    expected = [group for group in fits if not any(group < other for other in fits)]
    assert len(found) == len(set(found))
    assert set(found) == set(expected)


def test_cliques_of_the_textbook():
    # best and worst are 1.18 apart: too close at 5 %; at 10 % (1.12) C4.5 is worse than C4.5+m and
    # C4.5+m+cf, and C4.5+cf belongs to both
    assert cliques(mean_ranks(-AUC), nemenyi_distance(4, 14)) == [(3, 1, 2, 0)]
    assert cliques(mean_ranks(-AUC), nemenyi_distance(4, 14, 0.1)) == [(3, 1, 2), (2, 0)]


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_ranks([1.0, 2.0]),
        lambda: mean_ranks([[1.0, np.nan]]),
        lambda: friedman([[1.0, 2.0], [2.0, 1.0]]),
        lambda: friedman([[1.0, 2.0, 3.0]]),
        lambda: nemenyi([[1.0], [2.0]]),
        lambda: nemenyi_distance(1, 5),
        lambda: nemenyi_distance(3, 0),
        lambda: nemenyi_distance(3, 5, 1.0),
        lambda: wilcoxon([1.0, np.inf], [1.0, 2.0]),
        lambda: wilcoxon([1.0, 2.0], [1.0]),
        lambda: wilcoxon([1.0, 2.0], [2.0, 3.0], "lesser"),
        lambda: holm([0.5, 1.5]),
        lambda: holm([np.nan]),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(ValueError, match=r"."):
        call()
