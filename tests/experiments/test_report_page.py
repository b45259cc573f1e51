import json
import re
import sys

import numpy as np
import pytest

from gorelm.experiments.report import write_report
from gorelm.experiments.report.runs import Runs
from gorelm.experiments.report.tables import accuracy_table
from support.browser import needs_browser, verdict_of
from support.report_cases import fake_runs, make_run, read_csv, read_page

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("scikit_posthocs")


def test_page_needs_nothing_from_outside(tmp_path):
    path = write_report(fake_runs(), tmp_path, title="t")
    page = read_page(path)
    assert len(page.ids) == len(set(page.ids))
    assert not {"link", "img", "iframe", "object", "embed", "base", "image"} & set(page.tags)
    assert page.tags.count("script") == 1
    for tag, target in page.references:
        if target.startswith("#"):
            assert target[1:] in page.ids, (tag, target)
        else:
            assert tag == "a"
            assert (tmp_path / target).is_file(), target
    text = path.read_text("utf-8")
    assert "@import" not in text
    for target in re.findall(r"url\((.*?)\)", text):
        assert target.startswith("#")
        assert target[1:] in page.ids
    assert set(re.findall(r"https?://[^\s\"]*", text)) <= {
        "http://www.w3.org/1999/xlink",  # names of XML, never fetched
        "http://www.w3.org/2000/svg",
    }
    # pictures follow the colours of the page, and keep their letters
    assert "#000000" not in text
    assert text.count("<svg") == 4
    assert re.search(r"<text[^>]*>R-ELM</text>", text)


def test_everything_is_escaped(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    runs = [
        make_run(
            f"{evil}{i}",
            method,
            error,
            reason=evil,
            config=config,
            params=json.dumps({evil: evil}),
            versions=json.dumps({evil: evil}),
            started=evil,
        )
        for i in range(2)
        for config in (evil, "other")
        for method, error in [(evil, 1.0), ("'\"&$x$", 2.0), ("c", "failed")]
    ]
    path = write_report(runs, tmp_path, title=evil)
    page = read_page(path)
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert evil in page.words
    assert any("$x$" in word for word in page.words)
    for name in ("failures", "versions"):
        markdown = (tmp_path / "tables" / f"{name}.md").read_text("utf-8")
        assert not re.search(r"(?<!\\)<(?!br>)", markdown)


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [make_run("andro", "R-ELM", 0.5)],
        fake_runs(n_datasets=1),
        fake_runs(methods=("Mine",)),
        pytest.param(fake_runs(methods=("R-ELM", "Mine")), marks=pytest.mark.slow),
        [r for i, r in enumerate(fake_runs(5)) if i % 7],
        pytest.param(fake_runs(4)[:20], marks=pytest.mark.slow),
        [make_run(d, m, "failed", reason="x") for d in "ab" for m in "AB"],
        [
            make_run(d, m, e)
            for d in "ab"
            for m, e in zip("ABC", [1.0, np.nan, np.inf], strict=True)
        ],
        [make_run(d, m, 1.0) for d in "abc" for m in "ABC"],
        [make_run(d, m, None) for d in "ab" for m in "AB"],
        [make_run(d, m, 1e300 * (1 + i)) for d in "abc" for i, m in enumerate("ABC")],
        [{"dataset": "a", "ratio": 0.2, "method": "m", "status": "done"}],
        [make_run("a", "m", np.float32(0.5), n_rows=10.0, repeat=np.int64(1), params="no json")],
    ],
    ids=[
        "none",
        "one",
        "one-set",
        "one-method",
        "two-methods",
        "gaps",
        "many-gaps",
        "all-failed",
        "nan",
        "equal",
        "empty",
        "huge",
        "bare",
        "types",
    ],
)
@pytest.mark.filterwarnings("error")
def test_awkward_runs_are_reported(runs, tmp_path):
    path = write_report(runs, tmp_path, title="awkward")
    page = read_page(path)
    assert len(page.ids) == len(set(page.ids))
    lacking = sum(
        r["status"] != "done" or not np.isfinite(r.get("arrmse_test") or np.nan) for r in runs
    )
    failures = read_csv(tmp_path, "failures") if lacking else []
    assert len(failures) == lacking
    assert ("none failed" in path.read_text("utf-8")) == (lacking == 0)
    for file in (tmp_path / "tables").iterdir():
        text = file.read_text("utf-8")
        assert text.strip()
        assert not re.search(r"\bnan\b|\binf\b|\bNone\b", text), file


def test_report_is_reproducible(tmp_path):
    pages = [write_report(fake_runs(2), tmp_path / n, title="t").read_text("utf-8") for n in "ab"]
    assert pages[0] == pages[1]
    shuffled = list(np.random.default_rng(0).permutation(np.array(fake_runs(2), dtype=object)))
    assert accuracy_table(Runs(shuffled), 0.2, "test").header == list(
        accuracy_table(Runs(fake_runs(2)), 0.2, "test").header
    )


def test_missing_packages_name_the_extra(tmp_path, monkeypatch):
    for name in ("jinja2", "matplotlib", "scikit_posthocs"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=r"gorelm\[experiments\]"):
                write_report(fake_runs(2), tmp_path, title="t")
    assert not list(tmp_path.iterdir())  # nothing half written


SELF_TEST = """
const table = document.getElementById("arrmse-test-20");
const button = table.tHead.rows[0].cells[1].firstElementChild;
const values = () => [...table.tBodies[0].rows].map((row) => row.cells[1].dataset.sort);
const state = () => button.parentElement.getAttribute("aria-sort");
const seen = [[values(), state()]];
button.click();
seen.push([values(), state()]);
button.focus();
seen.push([document.activeElement === button, button.tabIndex]);
button.click();
seen.push([values(), state()]);
table.tHead.rows[0].cells[0].firstElementChild.click();
seen.push([[...table.tBodies[0].rows].map((row) => row.cells[0].dataset.sort), state()]);
seen.push([table.tFoot.rows.length]);
const verdict = seen;
"""


@pytest.mark.browser
@needs_browser
def test_page_sorts_in_a_browser(tmp_path):
    errors = {"a": 10.5, "b": 1.25, "c": None, "d": 5e-07, "e": 100.0}
    runs = [
        make_run(d, m, e if m == "R-ELM" else 1.0)
        for d, e in errors.items()
        for m in ("R-ELM", "Mine")
    ]
    path = write_report(runs, tmp_path / "out", title="browser")
    before, up, focus, down, names, rest = verdict_of(path, SELF_TEST, tmp_path)
    assert before == [["10.5", "1.25", "", "5e-07", "100.0"], None]
    # by number, not by letter; what is missing stays last both ways
    assert up == [["5e-07", "1.25", "10.5", "100.0", ""], "ascending"]
    assert focus == [True, 0]
    assert down == [["100.0", "10.5", "1.25", "5e-07", ""], "descending"]
    assert names == [["a", "b", "c", "d", "e"], None]
    assert rest == [1]  # the mean ranks stay below
