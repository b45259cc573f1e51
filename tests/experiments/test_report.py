import csv
import re

import numpy as np
import pytest

from gorelm.diagnostics.report.tables import Cell, Table
from gorelm.experiments.report import write_report
from gorelm.experiments.report.comparison import compare
from gorelm.experiments.report.figures import boxplots, critical_difference
from gorelm.experiments.report.runs import Runs
from gorelm.experiments.report.tables import accuracy_table, choice_table, summary_table
from support.report_cases import make_run, published_runs, read_csv

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest.importorskip("scikit_posthocs")


def test_table_by_hand(tmp_path):
    # andro at 20 %: the paper has 3.220 for R-ELM and 3.040 for GOR-ELM
    runs = [
        make_run("andro", "GOR-ELM", 3.0, repeat=0),
        make_run("andro", "GOR-ELM", 3.2, repeat=1),
        make_run("andro", "R-ELM", 3.5, repeat=0),
        make_run("andro", "R-ELM", 3.6, repeat=1),
        make_run("andro", "R-ELM", "failed", repeat=2, reason="out of memory"),
        make_run("zzz", "GOR-ELM", 0.9),
        make_run("zzz", "R-ELM", 0.5),
        make_run("aaa", "GOR-ELM", 0.7),
        make_run("aaa", "R-ELM", 0.7004),
    ]
    path = write_report(runs, tmp_path / "deep" / "down", title="By hand")
    rows = read_csv(path.parent, "arrmse-test-20")
    assert [row["data set"] for row in rows] == [
        "aaa",
        "andro",
        "zzz",
        "mean rank (of 3 data sets)",
    ]
    andro = rows[1]
    assert float(andro["GOR-ELM"]) == pytest.approx(3.1)
    assert float(andro["GOR-ELM deviation"]) == pytest.approx(0.2 / np.sqrt(2))
    assert float(andro["GOR-ELM published"]) == 3.04
    assert float(andro["GOR-ELM difference"]) == pytest.approx(0.06)
    assert float(andro["R-ELM"]) == pytest.approx(3.55)
    assert float(andro["R-ELM difference"]) == pytest.approx(0.33)
    assert andro["R-ELM note"] == "2 of 3 runs"
    assert rows[0]["GOR-ELM published"] == ""
    # full figures rank: GOR-ELM is first twice
    assert float(rows[3]["R-ELM"]) == pytest.approx(5 / 3)
    assert float(rows[3]["GOR-ELM"]) == pytest.approx(4 / 3)

    markdown = (path.parent / "tables" / "arrmse-test-20.md").read_text("utf-8")
    minus = "\N{MINUS SIGN}"
    assert "| data set | R-ELM | GOR-ELM |" in markdown
    assert (
        "| andro | 3.550 ± 0.071<br>paper 3.220 (+0.330)<br>2 of 3 runs "
        "| **3.100 ± 0.141**<br>paper 3.040 (+0.060) |" in markdown
    )
    # what prints the same is equally bold; one run has no deviation
    assert "| aaa | **0.700** | **0.700** |" in markdown
    assert "| zzz | **0.500** | 0.900 |" in markdown
    assert "| mean rank (of 3 data sets) | 1.67 | **1.33** |" in markdown
    assert minus not in markdown

    latex = (path.parent / "tables" / "arrmse-test-20.tex").read_text("utf-8")
    assert r"zzz & \textbf{0.500} & 0.900 \\" in latex
    assert r"\textbf{3.100 $\pm$ 0.141}; paper 3.040 (+0.060) \\" in latex

    text = path.read_text("utf-8")
    assert "<b>3.100</b>" in text
    assert "<b>3.550</b>" not in text
    assert "out of memory" in text
    assert "1 without a test error" in text


def test_columns_follow_the_paper_and_name_configurations():
    runs = [
        make_run("a", m, 1.0, config=c)
        for m, c in [("Zeta", "x"), ("IGOR-ELM", "x"), ("Alpha", "x"), ("R-ELM", "x")]
    ]
    labels = [c.label for c in Runs(runs).columns]
    assert labels == ["R-ELM", "IGOR-ELM", "Alpha", "Zeta"]
    runs += [make_run("a", "R-ELM", 2.0, config="robust")]
    table = accuracy_table(Runs(runs), 0.2, "test")
    assert table.header[1:3] == ["R-ELM (robust)", "R-ELM (x)"]
    assert [cell.value for cell in table.rows[0][1:3]] == [2.0, 1.0]


def test_ratios_equal_but_for_rounding_are_one():
    runs = Runs([make_run("a", "A", 1.0, ratio=r) for r in (0.3, 0.1 + 0.2)])
    assert runs.ratios == [0.3]
    assert runs.values("a", 0.3, runs.columns[0], "arrmse_test") == [1.0, 1.0]


def test_published_figures_give_the_published_verdicts():
    runs = Runs(published_runs())
    said = {ratio: " ".join(compare(runs, ratio).sentences) for ratio in runs.ratios}
    friedman = "Friedman test of R-ELM, OR-ELM, GR-ELM, GOR-ELM, 15 data sets: "
    wilcoxon = "Wilcoxon test of IGOR-ELM below IR-ELM, 15 data sets: "
    for ratio, first, second in [
        (0.0, "p = 0.95", "p = 0.29"),
        (0.2, "p = 0.0000092", "p = 0.0014"),
        (0.4, "p = 0.00027", "p = 0.0017"),
    ]:
        for what, p in [(friedman, first), (wilcoxon, second)]:
            assert f"{what}{p}; on the published figures of these data sets {p}." in said[ratio]
    assert "no difference shown at 5 %" in said[0.0]
    assert "no two methods differ significantly" in said[0.0]
    assert "the methods differ at 5 %" in said[0.2]
    assert re.search(r" GOR-ELM better than R-ELM \(p = [\d.]+\), GR-ELM \(p", said[0.2])
    pairs = next(s for s in compare(runs, 0.2).sentences if s.startswith("Wilcoxon"))
    assert not re.search("better than[^;]* (GOR|IGOR)-ELM", pairs)
    for row in accuracy_table(runs, 0.4, "test").rows:
        assert all(cell.difference == 0 and cell.difference_text == "0.000" for cell in row[1:])


def test_published_bounds_are_printed_as_bounds():
    table = accuracy_table(
        Runs([make_run("andro", "R-ELM", 1, ratio=0, arrmse_train=0.0)]), 0, "train"
    )
    cell = table.rows[0][1]
    assert cell.lines == ["0.000", "paper <0.001"]
    assert cell.difference is None
    assert "<0.001" in table.to_csv()


def test_incomplete_data_sets_are_left_out_and_named():
    runs = [
        make_run(d, m, e)
        for d, errors in {
            "a": (1, 2, 3),
            "b": (1, 2, 3),
            "c": (3, 1, "failed"),
            "d": (3, float("nan"), 1),
        }.items()
        for m, e in zip("XYZ", errors, strict=True)
    ]
    runs += [make_run(d, "W", "failed") for d in "abcd"]
    result = compare(Runs(runs), 0.2)
    assert result.labels == ("X", "Y", "Z")
    np.testing.assert_array_equal(result.ranks, [1, 2, 3])
    assert "Left out, without any test error here: W." in result.sentences
    assert "Left out, as some method has no test error there: c, d." in result.sentences
    footer = accuracy_table(Runs(runs), 0.2, "test").footer[0]
    assert [cell.value for cell in footer] == ["mean rank (of 2 data sets)", None, 1, 2, 3]


def test_many_groups_are_told_by_the_best():
    # eight methods in a fixed order on six sets: ranks 1 to 8, critical distance 4.29
    runs = [make_run(f"d{i}", m, float(j)) for i in range(6) for j, m in enumerate("ABCDEFGH")]
    result = compare(Runs(runs), 0.2)
    np.testing.assert_array_equal(result.ranks, range(1, 9))
    assert result.distance == pytest.approx(4.29, abs=5e-3)
    assert any(
        "not significantly different from the best, A: B, C, D, E." in s for s in result.sentences
    )


def test_pairs_by_hand():
    # X is below Y on all six sets: two-sided p = 2 / 2^6
    runs = [make_run(f"d{i}", m, e) for i in range(6) for m, e in [("X", i), ("Y", 2 * i + 1)]]
    result = compare(Runs(runs), 0.2)
    assert result.distance is None
    assert "X better than Y (p = 0.031)" in result.sentences[-1]
    row = dict(zip(result.pairs.header, result.pairs.rows[0], strict=True))
    assert row["first / second"].value == "X / Y"
    assert (row["first better"].value, row["second better"].value) == (6, 0)
    assert row["median difference"].value == -3.5
    assert row["median difference"].text == "\N{MINUS SIGN}3.500"
    assert row["p Nemenyi"].value is None
    assert row["p Wilcoxon, Holm"].value == 0.03125


def test_summary_and_choice():
    runs = Runs(
        [
            make_run(
                "andro", "R-ELM", 1, converged=1, n_iter=10, dual_gap=1e-3, params='{"C": 8.0}'
            ),
            make_run(
                "andro", "R-ELM", 1, converged=0, n_iter=30, dual_gap=5e-2, params='{"C": 2.0}'
            ),
            make_run("andro", "R-ELM", 1, outlier_recall=0.5, params='{"C": 8.0}'),
            make_run("andro", "R-ELM", "failed", n_iter=999, params='{"C": 9.0}'),
        ]
    )
    table = summary_table(runs)
    row = dict(zip(table.header, table.rows[0], strict=True))
    assert (row["done"].value, row["failed"].value) == (3, 1)
    assert row["converged"].text == "50%"
    assert row["median iterations"].value == 20
    assert row["largest gap"].value == 5e-2
    assert row["outlier recall"].value == 0.5
    assert row["outlier precision"].value is None
    chosen, paper = choice_table(runs).rows[0][3:]
    times = "\N{MULTIPLICATION SIGN}"
    assert chosen.value == f"C = 8 ({times}2); C = 2 ({times}1)"
    assert paper.value == "C = 2^20"


def test_diagram_places_ranks():
    svg = critical_difference(["a", "b", "c"], [1.0, 2.5, 2.5], 1.2, prefix="p", title='<"&')
    assert 'aria-label="&lt;&quot;&amp;"' in svg
    for text in ("a 1.00", "b 2.50", "2.50 c", "critical distance 1.20"):
        assert f">{text}</text>" in svg
    # one bar, joining b and c
    assert svg.count("stroke: #e0681a") == 1
    long = critical_difference(["a", "b"], [1.0, 2.0], 5.0, prefix="p", title="t")
    assert "longer than the axis" in long


def test_boxplots_mark_the_paper():
    svg = boxplots(
        Runs([make_run("andro", "R-ELM", 3.0), make_run("$x$", "R-ELM", 3.0)]), 0.2, prefix="p"
    )
    assert ">andro</text>" in svg
    assert ">$x$</text>" in svg  # a name, not a formula
    with_paper = svg.count("#2a8fd0")
    without = boxplots(Runs([make_run("$x$", "R-ELM", 3.0)]), 0.2, prefix="p").count("#2a8fd0")
    assert (with_paper > 0, without) == (True, 0)
    assert boxplots(Runs([make_run("x", "R-ELM", "failed")]), 0.2, prefix="p") is None


def test_table_formats():
    table = Table(
        "t",
        "50 % of a_b",
        ["a|b", "n"],
        [[Cell("x|*y*\n<z>"), Cell(1234567.0)], [Cell("#&{}~^\\"), Cell(None)]],
    )
    assert "a\\|b" in table.to_markdown()
    assert "x\\|\\*y\\* \\<z\\>" in table.to_markdown()
    assert r"50 \% of a\_b" in table.to_latex()
    assert r"\#\&\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} & --" in table.to_latex()
    assert list(csv.reader(table.to_csv().splitlines(keepends=True))) == [
        ["a|b", "n"],
        ["x|*y*\n<z>", "1234567.0"],
        ["#&{}~^\\", ""],
    ]
    assert Cell(1234567.0).text == "1.23e+06"
    assert Cell(0.00001, spec="p").text == "<0.0001"
    assert [Cell(v, spec="3").text for v in (0.47, 5.0, 123.4, 7)] == ["0.470", "5.00", "123", "7"]
    assert [Cell(v, spec="n").text for v in (0.47, 108123.4)] == ["0.470", "108,123"]
    with pytest.raises(ValueError, match="header"):
        Table("t", "", ["a", "b"], [[Cell(1)]])
