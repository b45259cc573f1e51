import copy
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gorelm import (
    GORELMRegressor,
    GORELMRegressorCV,
    IGORELMRegressor,
    OSELMRegressor,
    RELMRegressor,
    RobustELMRegressor,
    __version__,
)
from gorelm.datasets import contaminate, make_multitarget
from gorelm.diagnostics import write_fit_report
from gorelm.diagnostics.report import fit as report
from gorelm.diagnostics.report.fit import Fit, headlines, solver_facts
from gorelm.diagnostics.report.rows import inputs_of, suspicious_rows, value_in_print
from gorelm.metrics import rrmse
from support.browser import needs_browser, verdict_of
from support.model_cases import guided_ensemble
from support.report_cases import read_page

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.filterwarnings("error")

DATA = make_multitarget(150, outlier_ratio=0.2, random_state=0)
X, T = DATA.X, DATA.T
ELM = {"n_hidden": 25, "random_state": 0}
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
PICTURES = {
    "How the penalty was chosen",
    "How the fit converged",
    "How the network grew",
}


class Tables(HTMLParser):
    """The tables of a page: the values that cells are sorted by, by the table's id."""

    def __init__(self, path):
        super().__init__()
        self.rows, self.heads, self._table, self._part = {}, {}, None, None
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "table":
            self._table = attrs["id"]
            self.rows[self._table], self.heads[self._table] = [], []
        if tag in ("thead", "tbody", "tfoot"):
            self._part = tag
        if tag == "tr" and self._part == "tbody":
            self.rows[self._table].append([])
        if "data-sort" in attrs and self._part == "tbody":
            self.rows[self._table][-1].append(attrs["data-sort"])

    def handle_data(self, data):
        if self._part == "thead" and data.strip():
            self.heads[self._table].append(data)


def write(model, folder, X=X, y=T, **more):
    return write_fit_report(model, X, y, folder / "deep" / "fit.html", **more)


def words(path):
    return " ".join(" ".join(read_page(path).words).split())


@pytest.fixture(scope="module")
def gor():
    return GORELMRegressor(lam=0.1, l1_ratio=0.5, **ELM).fit(X, T)


@pytest.fixture(scope="module")
def page(gor, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "deep" / "fit.html"
    names = ["a", "b", "c"]
    assert write_fit_report(gor, X, T, path, target_names=names, title="One & only") == path
    return path


@pytest.fixture
def no_pictures(monkeypatch):
    """For tests of what the page says: pictures take most of the time."""
    monkeypatch.setattr(
        report, "_picture", lambda heading, caption, **_: report.Picture(heading, "", caption)
    )


def test_page_says_what_the_model_says(gor, page):
    path = page
    tables, text = Tables(path), words(path)
    assert "<title>One &amp; only</title>" in path.read_text("utf-8")

    flagged, predicted = gor.outlier_mask_, gor.predict(X)
    assert f"rows with findings {flagged.sum()} of 150" in text
    assert "lam = 0.1" in text
    assert "l1_ratio = 0.5" in text
    assert f"{gor.n_active_} of 25 have a weight" in text
    assert f"{gor.n_iter_} iterations, converged" in text
    assert f"{gor.dual_gap_:.2e}".split("e")[0].rstrip("0") in text
    assert f"150 rows, {X.shape[1]} inputs, 3 targets" in text
    assert __version__ in text
    assert np.__version__ in text

    # Every suspicious row with its score and residuals, the largest first.
    assert tables.heads["suspicious-rows"] == ["row", "finding", "score", *"abc", "inputs"]
    rows = tables.rows["suspicious-rows"]
    order = np.argsort(-gor.outlier_scores_, kind="stable")[:100]
    assert [int(row[0]) for row in rows] == order.tolist()
    assert [row[1] == "row" for row in rows] == flagged[order].tolist()
    figures = np.array([row[2:] for row in rows], dtype=float)
    np.testing.assert_array_equal(figures[:, 0], gor.outlier_scores_[order])
    np.testing.assert_allclose(figures[:, 1:], (T - predicted)[order], rtol=1e-12)

    # Errors against the mean predictor.
    errors = tables.rows["errors"]
    assert [row[0] for row in errors] == ["a", "b", "c"]
    figures = np.array([row[1:] for row in errors], dtype=float)
    kept = ~flagged
    rmse = np.sqrt(np.mean((T - predicted)[kept] ** 2, axis=0))
    assert (figures[:, 0] == kept.sum()).all()
    np.testing.assert_allclose(figures[:, 1], rmse)
    np.testing.assert_allclose(figures[:, 2], T[kept].std(axis=0))
    np.testing.assert_allclose(figures[:, 3], rrmse(T[kept], predicted[kept]))
    np.testing.assert_allclose(figures[:, 4], rrmse(T, predicted))
    assert "predictions by the model, which saw these rows" in text
    # Every picture is read out.
    labels = re.findall(r'<svg role="img" aria-label="([^"]+)"', path.read_text("utf-8"))
    assert len(labels) == len(set(labels)) == 3


@pytest.mark.parametrize(
    ("model", "pictures", "said"),
    [
        (RELMRegressor(**ELM), set(), "closed form"),
        (
            GORELMRegressorCV(
                np.logspace(-1, 1, 5), l1_ratios=[0, 0.5], n_hidden=[10, 25], cv=3, random_state=0
            ),
            {"How the penalty was chosen", "How the fit converged"},
            "judged by models that did not see the row",
        ),
        (
            IGORELMRegressor(
                lam=0.1, n_initial=10, n_step=5, max_hidden=20, validation=3, random_state=0
            ),
            {"How the network grew", "How the fit converged"},
            "Growth stopped by max_hidden",
        ),
        (
            RobustELMRegressor(n_members=2, **ELM),
            set(),
            "in two groups",
        ),
        pytest.param(OSELMRegressor(**ELM), set(), "closed form", marks=pytest.mark.slow),
        pytest.param(
            make_pipeline(StandardScaler(), GORELMRegressor(**ELM)),
            {"How the fit converged"},
            "Pipeline → GORELMRegressor",
            marks=pytest.mark.slow,
        ),
        (
            GridSearchCV(GORELMRegressor(**ELM), {"lam": [0.1, 1.0]}, cv=2),
            {"How the fit converged", "How the penalty was chosen"},
            "GridSearchCV → GORELMRegressor",
        ),
        pytest.param(
            TransformedTargetRegressor(GORELMRegressor(**ELM), transformer=StandardScaler()),
            {"How the fit converged"},
            "TransformedTargetRegressor → GORELMRegressor",
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else "",
)
def test_every_kind_of_model(model, pictures, said, tmp_path):
    model = clone(model).fit(X, T)
    path = write(model, tmp_path)
    page = read_page(path)
    text = words(path)
    assert said in text
    assert {heading for heading in PICTURES if heading in text} == pictures
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", text)
    rows = Tables(path).rows["suspicious-rows"]
    residuals = np.array([row[3:] for row in rows], dtype=float)
    index = [int(row[0]) for row in rows]
    predicted = getattr(model, "out_of_fold_", None)  # by models that did not see the row
    predicted = model.predict(X) if predicted is None else predicted
    np.testing.assert_allclose(residuals, (T - predicted)[index], rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("no_pictures")
def test_members_of_an_ensemble(tmp_path):
    """The page names the layers, the inputs that their nodes see, and the seconds of each step."""
    model, X, T = guided_ensemble()
    text = words(write_fit_report(model, X, T, tmp_path / "fit.html"))
    assert "Settings given effort = fast, n_hidden = 60, n_members = 3, random_state = 0" in text
    for member in model.members_:
        k, nodes = member.hidden_.A.shape[1], member.n_hidden
        link = " + linear" if member.direct_link else ""
        seen = f" of {k} inputs" if member.hidden_.subsets is not None else ""
        assert f"{nodes} {member.activation}{seen}{link}" in text
    nodes = sum(member.n_hidden for member in model.members_)
    assert f"Networks averaged {len(model.members_)}, {nodes} hidden nodes in all" in text
    assert "Distance from the optimum 0, closed form" in text
    assert "Hidden nodes kept" not in text
    assert re.search(r"Seconds of the fit \S+ \(screen .*, search .*, refine .*, fit .*\)", text)
    assert f"{len(model.cv_results_['spread'])} layers were compared" in text
    tried = Tables(tmp_path / "fit.html").rows["layers"]
    assert [float(row[-1]) for row in tried] == pytest.approx(
        np.sqrt(-model.cv_results_["mean_test_score"] / 2)
    )
    assert [row[1] == "all" for row in tried] == [
        seen == X.shape[1] for seen in model.cv_results_["n_inputs"]
    ]


class Wrapper(RegressorMixin, BaseEstimator):
    """A meta-estimator with scores of its own."""

    def fit(self, X, y):
        self.regressor_ = GORELMRegressor(lam=0.1, **ELM).fit(X, y)
        self.outlier_scores_ = 1000.0 + np.arange(len(X))
        self.outlier_threshold_ = 1100.5
        self.outlier_mask_ = self.outlier_scores_ > self.outlier_threshold_
        return self

    def predict(self, X):
        return self.regressor_.predict(X)


@pytest.mark.usefixtures("no_pictures")
def test_rows_are_those_of_the_findings_in_their_order(tmp_path):
    pytest.importorskip("pandas")
    inputs, targets = X.copy(), T.copy()
    targets[[5, 60]] += 30.0
    targets[90, 1] += 60.0
    model = RobustELMRegressor(n_hidden=20, effort="fast", random_state=0).fit(inputs, targets)
    found = model.findings(inputs, targets)
    assert "row" in {*found["gorelm.kind"]}
    path = write(model, tmp_path, X=inputs, y=targets)
    rows = Tables(path).rows["suspicious-rows"]
    assert [int(row[0]) for row in rows] == found["gorelm.row"].tolist()[:100]
    assert [row[1] for row in rows] == found["gorelm.kind"].tolist()[:100]
    assert [float(row[2]) for row in rows] == found["gorelm.quality"].tolist()[:100]
    certain = "" if model.contaminated_ else f"; {found['gorelm.certain'].sum()} certain"
    share = f"{found['gorelm.flagged'].mean():.1%}"
    said = words(path)
    assert f"rows with findings {found['gorelm.flagged'].sum()} of 150 ({share}): " in said
    assert f"{(found['gorelm.kind'] == 'row').sum()} wrong row" in said
    assert certain in said


@pytest.mark.usefixtures("no_pictures")
def test_what_the_wrapper_says_comes_first(tmp_path):
    path = write(Wrapper().fit(X, T), tmp_path)
    rows = Tables(path).rows["suspicious-rows"]
    assert [float(row[2]) for row in rows] == [1149.0 - k for k in range(100)]
    assert "49 of 150" in words(path)
    assert "Wrapper → GORELMRegressor" in words(path)


@pytest.mark.usefixtures("no_pictures")
def test_out_of_fold_predictions_are_used(gor, tmp_path):
    model = copy.copy(gor)
    model.out_of_fold_ = np.where(np.arange(150)[:, None] < 3, np.nan, T - 7.0)
    path = write(model, tmp_path)
    rows = Tables(path).rows["suspicious-rows"]
    for row in rows:
        expected = [""] * 3 if int(row[0]) < 3 else pytest.approx([7.0] * 3)
        cells = row[3:]
        assert (cells if int(row[0]) < 3 else [float(v) for v in cells]) == expected
    errors = Tables(path).rows["errors"]
    assert [float(row[2]) for row in errors] == pytest.approx([7.0] * 3)
    assert "predictions by models that did not see the row" in words(path)


def test_page_needs_nothing_from_outside(page):
    text, page = page.read_text("utf-8"), read_page(page)
    assert not {"link", "img", "iframe", "object", "embed", "base", "image"} & set(page.tags)
    assert page.tags.count("script") == 1
    for _, target in page.references:
        assert target.startswith("#")
        assert target[1:] in page.ids
    assert set(re.findall(r"https?://[^\s\"]*", text)) <= {
        "http://www.w3.org/1999/xlink",  # names of XML, never fetched
        "http://www.w3.org/2000/svg",
    }
    assert "#000000" not in text
    assert "default-src 'none'" in text


def test_everything_is_escaped(gor, tmp_path):
    path = write(
        gor,
        tmp_path,
        target_names=[EVIL, "'\"&$x$", "$ 温度"],
        row_names=[EVIL] * 150,
        title=EVIL,
    )
    page = read_page(path)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert page.words.count(EVIL) >= 4  # title, heading and columns
    assert sum(EVIL[:10] in word for word in page.words) >= 15  # panels and labels, shortened
    assert any("$x$" in word for word in page.words)


@pytest.mark.usefixtures("no_pictures")
def test_names_of_frames(gor, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(T, columns=["one", "two", "three"])
    path = write(gor, tmp_path, X=pd.DataFrame(X, index=[f"id{i}" for i in range(150)]), y=frame)
    tables = Tables(path)
    assert tables.heads["suspicious-rows"][:2] == ["row", "name"]
    assert tables.heads["suspicious-rows"][-4:-1] == ["one", "two", "three"]
    for row in tables.rows["suspicious-rows"]:
        assert row[1] == f"id{row[0]}"
    assert Fit.of(gor, pd.DataFrame(X), frame, None, None).row_names is None  # says nothing new


def test_rows_show_given_expected_and_inputs(gor):
    """Of every row: what is given and expected, which cells are wrong, and what went in."""
    pd = pytest.importorskip("pandas")
    model = copy.copy(gor)
    model.cell_mask_ = np.zeros(T.shape, dtype=bool)
    model.cell_mask_[3, 1] = True  # of a row that is not flagged as a whole
    row = int(np.flatnonzero(~gor.outlier_mask_)[-1])
    model.cell_mask_[row, 2] = True
    frame = pd.DataFrame(X).rename(columns=str).assign(colour="red <b>")
    model.predict = lambda _: gor.predict(X)
    fit = Fit.of(model, frame, pd.DataFrame(T, columns=["a", "b", "c"]), None, None)
    found = {one.row: one for one in suspicious_rows(fit).rows}
    assert found[row].finding
    assert [cell.wrong for cell in found[row].cells] == [False, False, True]
    expected = gor.predict(X)
    for i, one in found.items():
        assert [float(cell.given.replace(",", "")) for cell in one.cells] == pytest.approx(T[i])
        assert [cell.expected for cell in one.cells] == [value_in_print(v, 4) for v in expected[i]]
        names, values = zip(*one.inputs, strict=True)
        assert names == tuple(frame.columns)
        assert values[-1] == "red <b>"
        assert [float(v.replace(",", "")) for v in values[:-1]] == pytest.approx(X[i])
    right = ~model.cell_mask_ & ~gor.outlier_mask_[:, None]
    errors = [
        np.sqrt(np.mean((T - expected)[right[:, k], k] ** 2)) / np.std(T[right[:, k], k])
        for k in range(3)
    ]
    np.testing.assert_allclose(errors, fit.relative_errors[1])
    to_check = [one.finding != "" for one in found.values()]
    assert to_check == sorted(to_check, reverse=True)  # what is to be checked comes first


def test_inputs_of_any_table():
    rows = np.array([2, 0])
    for table in (X, X.tolist(), sparse.csr_array(X)):
        names, values = inputs_of(table, rows)
        assert names == [f"input {j}" for j in range(X.shape[1])]
        np.testing.assert_allclose(values, X[rows])
    polars = pytest.importorskip("polars")
    names, values = inputs_of(
        polars.DataFrame(X, schema=[f"c{j}" for j in range(X.shape[1])]), rows
    )
    assert names[0] == "c0"
    np.testing.assert_allclose(values, X[rows])


def test_numbers_print_as_people_write_them():
    shown = {
        18280.0: "18,280",
        18283.26: "18,283",
        0.31: "0.31",
        -2.50: "-2.5",
        1234567: "1,234,567",
        3e-9: "3e-09",
        np.float64(0.0): "0",
        "<b>": "<b>",
        True: "True",
    }
    assert {value: value_in_print(value, 4) for value in list(shown)[:3]} == {
        18280.0: "18,280",
        18283.26: "18,280",
        0.31: "0.31",
    }
    assert [value_in_print(value, 5) for value in shown] == list(shown.values())
    assert {value_in_print(value, 5) for value in (None, np.nan, "")} == {value_in_print(None, 5)}


def test_solver_facts_come_last(page):
    text = words(page)
    places = [text.index(what) for what in (
        "relative RMSE", "rows with findings", "cells to check", "The 100 rows to check first",
        "Root mean square errors", "Distance from the optimum", "Software that wrote",
    )]  # fmt: skip
    assert places == sorted(places)


@pytest.mark.usefixtures("no_pictures")
def test_one_target(tmp_path):
    model = GORELMRegressor(lam=0.1, **ELM).fit(X, T[:, 0])
    tables = Tables(write(model, tmp_path, y=T[:, 0]))
    assert tables.heads["suspicious-rows"][-2:] == ["target", "inputs"]
    assert len(tables.rows["errors"]) == 1


@pytest.mark.usefixtures("no_pictures")
def test_unknown_targets(tmp_path):
    gaps = T.copy()
    gaps[::2, 0] = np.nan
    gaps[5] = np.nan
    model = GORELMRegressor(lam=0.1, missing_targets="ignore", **ELM).fit(X, gaps)
    path = write(model, tmp_path, y=gaps)
    tables, predicted = Tables(path), model.predict(X)
    assert f"{np.isnan(gaps).sum()} target cells unknown" in words(path)
    for row in tables.rows["suspicious-rows"]:
        known = ~np.isnan(gaps[int(row[0])])
        assert [cell != "" for cell in row[3:]] == known.tolist()
    for k, row in enumerate(tables.rows["errors"]):
        rows = ~np.isnan(gaps[:, k]) & ~model.outlier_mask_
        assert int(row[1]) == rows.sum()
        assert float(row[4]) == pytest.approx(rrmse(T[rows, k], predicted[rows, k])[0])
    assert not re.search(r"\bnan\b", words(path))


def test_many_targets(tmp_path):
    rng = np.random.default_rng(0)
    wide = X @ rng.normal(size=(X.shape[1], 300)) + 0.1 * rng.normal(size=(150, 300))
    wide[7, 123] += 500.0
    model = RELMRegressor(C=10.0, **ELM).fit(X, wide)
    path = write(model, tmp_path, y=wide)
    tables = Tables(path)
    assert tables.heads["suspicious-rows"] == [
        "row",
        "finding",
        "score",
        "worst target",
        "given → expected",
        "inputs",
    ]
    worst = tables.rows["suspicious-rows"][0]
    assert [worst[0], worst[3]] == ["7", "target 124"]
    assert float(worst[4]) == pytest.approx((wide - model.predict(X))[7, 123])
    kept = ~model.outlier_mask_
    errors = rrmse(wide[kept], model.predict(X)[kept])
    listed = {row[0] for row in tables.rows["errors"]}
    assert listed == {f"target {k + 1}" for k in np.argsort(-errors)[:200]}
    assert "12 of 300 targets" in words(path)
    assert path.stat().st_size < 3e6


def test_many_rows_make_a_small_page(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30_000, 2))
    T, _ = contaminate(np.c_[X[:, 0] * X[:, 1], X.sum(axis=1)], 0.1, random_state=0)
    model = RELMRegressor(n_hidden=5, random_state=0).fit(X, T)
    path = write(model, tmp_path, X=X, y=T)
    assert path.stat().st_size < 2e6
    assert "drawn as an image" in words(path)
    assert len(Tables(path).rows["suspicious-rows"]) == 100
    for _, target in read_page(path).references:
        assert target.startswith(("#", "data:image/png;base64,"))


@pytest.mark.data
def test_a_real_fit(load_real, tmp_path):
    X, T = load_real("enb")
    T, planted = contaminate(T, 0.2, random_state=0)
    model = RobustELMRegressor(n_hidden=40, n_members=2, random_state=0).fit(X, T)
    rows = Tables(write(model, tmp_path, X=X, y=T)).rows["suspicious-rows"]
    assert planted[[int(row[0]) for row in rows]].mean() > 0.95


def test_wrong_rows_are_refused(gor, tmp_path):
    with pytest.raises(ValueError, match="X has 50 rows, but the model keeps the scores of 150"):
        write(gor, tmp_path, X=X[:50], y=T[:50])
    with pytest.raises(ValueError, match="y has 149 rows"):
        write(gor, tmp_path, y=T[:149])
    with pytest.raises(ValueError, match="y has 2 targets, but the model was fitted to 3"):
        write(gor, tmp_path, y=T[:, :2])
    with pytest.raises(ValueError, match="2 target_names for 3 targets"):
        write(gor, tmp_path, target_names=["a", "b"])
    with pytest.raises(ValueError, match="1 row_names for 150 rows"):
        write(gor, tmp_path, row_names=["a"])
    with pytest.raises(IsADirectoryError, match="name the file"):
        write_fit_report(gor, X, T, tmp_path)
    with pytest.raises(NotFittedError):
        write(clone(gor), tmp_path)
    with pytest.raises(ValueError, match="Ridge has no outlier_scores_"):
        write(Ridge().fit(X, T), tmp_path)
    assert not list(tmp_path.iterdir())  # nothing half written


def test_missing_packages_name_the_extra(gor, tmp_path, monkeypatch):
    for name in ("jinja2", "matplotlib"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=r"gorelm\[report\]"):
                write(gor, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_fit_that_did_not_converge_is_said_so(gor):
    model = copy.copy(gor)
    model.converged_ = False
    fit = Fit.of(model, X, T, None, None)
    assert "NOT converged" in dict(solver_facts(fit))["Distance from the optimum"]
    assert "NOT converged" in [what for what, *_ in headlines(fit)]  # and first of all
    assert "NOT converged" not in [what for what, *_ in headlines(Fit.of(gor, X, T, None, None))]


SELF_TEST = """
const table = document.getElementById("suspicious-rows");
const button = table.tHead.rows[0].cells[0].firstElementChild;
const first = () => Number(table.tBodies[0].rows[0].cells[0].dataset.sort);
const before = first();
button.click();
const up = first();
button.click();
const verdict = { before, up, down: first(),
  fetched: performance.getEntriesByType("resource").map((entry) => entry.name),
  widths: [document.documentElement.scrollWidth, window.innerWidth],
  heights: [...document.querySelectorAll("figure svg")].map((svg) => svg.clientHeight),
};
"""


@pytest.mark.browser
@needs_browser
def test_page_sorts_in_a_browser(gor, page, tmp_path):
    verdict = verdict_of(page, SELF_TEST, tmp_path)
    listed = np.argsort(-gor.outlier_scores_, kind="stable")[:100]
    assert verdict["before"] == listed[0]
    assert verdict["up"] == listed.min()
    assert verdict["down"] == listed.max()
    assert verdict["fetched"] == []
    assert len(verdict["heights"]) == 3
    assert min(verdict["heights"]) > 100
    assert verdict["widths"][0] <= verdict["widths"][1]  # nothing sticks out of the page
