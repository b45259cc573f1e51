"""From a table to a model, to its wrong rows and to predictions, as a person at a terminal does."""

import re
from copy import copy
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import Ridge

import gorelm
from gorelm import GORELMRegressor, RobustELMRegressor, TableRegressor
from gorelm.cli.summary import of_networks
from gorelm.datasets import make_multitarget, read_table
from gorelm.io import load, save
from support.commands import call
from support.model_cases import guided_ensemble

QUICK = ["--nodes", 15]


@pytest.fixture(scope="module")
def quarter_wrong(tmp_path_factory):
    """A table of which a quarter of the rows are wrong, fitted as the command comes."""
    folder = tmp_path_factory.mktemp("quarter")
    data = make_multitarget(520, 8, 3, outlier_ratio=0.25, random_state=0)
    frame = pd.DataFrame(
        np.hstack([data.X, data.T]), columns=[*data.feature_names, *data.target_names]
    )
    frame[:500].to_csv(folder / "t.csv", index=False)
    frame[500:].to_csv(folder / "new.csv", index=False)
    screen = call("fit", folder / "t.csv", "--targets", "t0,t1,t2", "--model", folder / "t.gorelm")
    return SimpleNamespace(folder=folder, frame=frame, data=data, screen=screen.stdout)


def test_a_quarter_of_the_rows_is_wrong(quarter_wrong):
    model, planted = load(quarter_wrong.folder / "t.gorelm"), quarter_wrong.data.planted[:500]
    flagged = model.outlier_mask_
    assert flagged[planted].mean() >= 0.95
    assert planted[flagged].mean() >= 0.9
    screen = " ".join(quarter_wrong.screen.split())
    assert "500 rows, 11 columns; 8 inputs, 3 targets (t0, t1, t2)" in screen
    assert (
        f"Findings in {flagged.sum()} of 500 rows ({flagged.mean():.0%}): {flagged.sum()} wrong"
        in screen
    )
    assert "left out of the training" in screen
    assert "Certificate:" in screen
    assert "gorelm predict" in screen


def test_predictions_are_those_of_python(quarter_wrong):
    folder, frame = quarter_wrong.folder, quarter_wrong.frame
    call("predict", folder / "t.gorelm", folder / "new.csv", "--out", folder / "p.csv")
    predicted = pd.read_csv(folder / "p.csv")
    assert list(predicted) == ["t0", "t1", "t2"]
    model = load(folder / "t.gorelm")
    inputs = frame.loc[500:, list(model.feature_names_in_)]
    np.testing.assert_array_equal(predicted, model.predict(inputs))
    truth = quarter_wrong.data.T_clean[500:]
    assert np.sqrt(np.mean((predicted - truth) ** 2) / truth.var()) < 0.3


def test_errors_on_the_screen_are_those_of_unseen_rows(quarter_wrong):
    model = load(quarter_wrong.folder / "t.gorelm")
    y = quarter_wrong.frame[["t0", "t1", "t2"]].to_numpy()[:500]
    found = model.findings(quarter_wrong.frame.iloc[:500, :8], y).sort_values("gorelm.row")
    screen = quarter_wrong.screen[quarter_wrong.screen.index("RMSE on rows") :]
    for j, name in enumerate(("t0", "t1", "t2")):
        kept = ~(model.outlier_mask_ | found[f"gorelm.flagged.y{j}"].to_numpy())
        values = y[kept, j]
        expected = np.sqrt(np.mean((values - model.out_of_fold_[kept, j]) ** 2))
        line = next(line for line in screen.splitlines() if f"  {name}  " in line)
        error, mean, ratio = map(float, line.split()[1:])
        assert error == pytest.approx(expected, rel=1e-3)
        assert mean == pytest.approx(values.std(), rel=1e-3)
        assert ratio == pytest.approx(expected / values.std(), abs=1e-3)


# -- a dirty table -------------------------------------------------------------------------------


def make_dirty(n_rows=80, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "id": [f"r{i:04}" for i in range(n_rows)],
            "size": rng.normal(size=n_rows).round(3),
            "colour": rng.choice(["red", "blue", "green"], n_rows),
            "code": rng.choice(["007", "011", "A1"], n_rows),
            "same": 1,
        }
    )
    frame["price"] = (2 * frame["size"] + 3 * (frame["colour"] == "red")).round(3)
    frame["weight"] = (np.sin(frame["size"]) + (frame["code"] == "007")).round(3)
    frame.loc[frame.index % 5 == 4, "size"] = np.nan
    frame.loc[3, "weight"] = np.nan
    frame.loc[frame.index == 50, "price"] = 1e6
    return frame


@pytest.fixture(scope="module")
def dirty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dirty")
    frame = make_dirty()
    path = folder / "dirty.csv"
    frame.to_csv(path, index=False)
    lines = path.read_text().splitlines()
    lines[1:1] = ["", "  "]  # blank lines, which are no rows
    path.write_text("\n".join(lines) + "\n")
    arguments = ["--targets", "price,weight", *QUICK]
    screen = call("fit", path, *arguments, "--model", folder / "m.gorelm")
    return SimpleNamespace(folder=folder, path=path, frame=frame, screen=screen.stdout)


def test_what_was_done_is_said(dirty):
    said = " ".join(dirty.screen.split())
    for sentence in (
        "80 rows, 7 columns; 5 inputs, 2 targets (price, weight)",
        "Missing targets: 'weight' (1)",
        "Ignored: 'id' (a text of its own in more than half of the rows)",
        "Ignored: 'same' (the same in every row)",
        "'colour' has 3 categories",
        "'size' (16, with an indicator)",
        "Written:",
    ):
        assert sentence in said


def test_the_two_lines_of_python_do_the_same(dirty):
    table = read_table(dirty.path)
    small = RobustELMRegressor(n_hidden=15, missing_targets="ignore")
    X = table.drop(columns=["price", "weight"])
    model = TableRegressor(small, random_state=0).fit(X, table[["price", "weight"]])
    saved = load(dirty.folder / "m.gorelm")
    np.testing.assert_array_equal(model.predict(X), saved.predict(X))
    assert saved.notes_ == model.notes_
    assert saved.target_names_ == ["price", "weight"]


@pytest.mark.usefixtures("few_layers")
def test_settings_of_the_fit(dirty, tmp_path):
    """Effort and nodes are those of the model; threads are of this fit, and change nothing."""
    predicted = {}
    table = read_table(dirty.path).drop(columns=["price", "weight"])
    for words in ("--effort fast", "--effort fast --jobs 2", "--effort high --nodes 20"):
        path = tmp_path / "m.gorelm"
        arguments = ["--targets", "price,weight", *words.split()]
        said = call("fit", dirty.path, *arguments, "--model", path).stdout
        model = load(path)
        robust = model.regressor_
        assert robust.effort == words.split()[1]
        assert robust.n_hidden == (20 if "--nodes" in words else "auto")
        assert robust.n_jobs is None
        assert f"compared, effort '{robust.effort}':" in said
        # The command for the next step has what makes the same model.
        same = words.removesuffix(" --jobs 2")
        assert f"--targets price,weight {same} --out suspicious.csv" in said
        predicted[words] = model.predict(table)
    fast, threads, high = predicted.values()
    np.testing.assert_array_equal(fast, threads)
    assert not np.array_equal(fast, high)
    result = call("outliers", dirty.path, "--targets", "price", "--effort", "none", code=2)
    assert "'fast', 'default', 'high'" in result.stderr


@pytest.mark.usefixtures("few_layers")
def test_the_scale_of_the_targets(tmp_path):
    path, table = tmp_path / "m.gorelm", tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    size = rng.uniform(20, 90, 60)
    columns = {"size": size, "price": 50 + size + rng.normal(size=60), "weight": 99 - size}
    pd.DataFrame(columns).to_csv(table, index=False)
    arguments = ["--targets", "price,weight", "--effort", "fast"]
    for scale, kind in (("log", "log"), ("sqrt", "sqrt"), ("none", "none"), ("auto", "none")):
        asked = ["--target-transform", scale]
        said = call("fit", table, *arguments, *asked, "--model", path).stdout
        assert load(path).target_transforms_ == [kind, kind]
        again = f"--effort fast {'' if scale == 'auto' else ' '.join(asked) + ' '}--out suspicious"
        assert again in said
        assert ("--target-transform none fits" in " ".join(said.split())) == (kind != "none")
    result = call("outliers", table, *arguments, "--target-transform", "cube", code=2)
    assert "'auto', 'none', 'log', 'sqrt'" in result.stderr


@pytest.mark.usefixtures("few_layers")
def test_inputs_are_checked_on_request(dirty, tmp_path):
    path = tmp_path / "m.gorelm"
    arguments = ["--targets", "price,weight", "--effort", "fast", "--check-inputs"]
    said = call("fit", dirty.path, *arguments, "--model", path).stdout
    assert "Wrong numbers among the inputs, filled in" in said
    assert "--effort fast --check-inputs --out suspicious.csv" in said
    assert load(path).input_mask_.shape[1] == load(path).n_features_in_


def test_networks_are_described():
    model, _, _ = guided_ensemble()
    lines = of_networks(model)
    assert lines[0] == (
        f"Model: the average of {len(model.members_)} networks, the best of "
        f"{len(model.cv_results_['spread'])} layers compared, effort 'fast':"
    )
    head = ["layer", "nodes", "inputs of a node", "spread", "linear part", "penalty"]
    assert re.split(" {2,}", lines[1].strip()) == head
    for line, member in zip(lines[2:], model.members_, strict=False):
        seen = member.hidden_.A.shape[1]
        start = [member.activation, "60", *(("all", "9") if seen == 9 else (str(seen), "of", "9"))]
        assert line.split()[: len(start)] == start
        assert line.split()[-1] == f"{1 / member.C:.2g}"
    assert "closed form" in lines[-2]
    seconds = r"  Seconds: \S+ \(screen \S+, search \S+, refine \S+, fit \S+\)\."
    assert re.fullmatch(seconds, lines[-1])
    alone = copy(model)
    alone.members_, alone.effort = model.members_[:1], "default"
    assert of_networks(alone)[0].startswith("Model: one network, the best of")
    assert of_networks(alone)[0].endswith("layers compared:")


@pytest.mark.parametrize("name", ["o.csv", "o.tsv", "o.csv.gz", "o.parquet"])
def test_outliers_are_found_on_their_lines(dirty, tmp_path, name, monkeypatch):
    saved = load(dirty.folder / "m.gorelm")
    monkeypatch.setattr("gorelm.cli.tables.fitted", lambda table, **how: saved)
    out = tmp_path / name
    result = call("outliers", dirty.path, "--targets", "price,weight", "--out", out)
    rows = read_table(out)
    of_row = ("row", "line", "score", "quality", "flagged", "certain", "kind", "off", "twin")
    of_target = ("expected", "off_by", "spreads", "score", "flagged")
    assert list(rows) == [
        "id", "size", "colour", "code", "same",
        *(f"gorelm.{name}" for name in of_row),
        *("price", *(f"gorelm.{name}.price" for name in of_target)),
        *("weight", *(f"gorelm.{name}.weight" for name in of_target)),
    ]  # fmt: skip
    rows.columns = [name.removeprefix("gorelm.") for name in rows]
    assert len(rows) == 80
    assert (np.diff(rows["quality"]) >= 0).all()
    file = dirty.path.read_text().splitlines()
    for _, row in rows.iterrows():
        assert file[int(row["line"]) - 1].startswith(f"r{int(row['row']):04},")
    worst = rows.iloc[0]
    assert (worst["row"], worst["line"], worst["off"]) == (50, 54, "price")
    assert worst["flagged"]
    assert worst["price"] == 1e6
    assert worst["off_by.price"] == pytest.approx(1e6 - worst["expected.price"])
    known = dirty.frame["price"].to_numpy()
    low, high = np.quantile(known, [0.25, 0.75], method="inverted_cdf")
    spread = (high - low) / 1.3489795
    np.testing.assert_allclose(saved.target_spreads_[0], spread, rtol=1e-6)
    assert worst["spreads.price"] == pytest.approx(worst["off_by.price"] / spread, rel=1e-6)
    scores = np.log1p(rows[["spreads.price", "spreads.weight"]].abs()).mean(axis=1)
    np.testing.assert_allclose(np.expm1(scores), rows["score"], rtol=1e-6)
    assert rows.loc[rows["row"] == 3, "off_by.weight"].isna().all()
    assert re.search(r"\n +54 +50 +(row|cell) +price +1,000,000 ", result.stdout)


def test_wrong_prices_are_found_without_a_word_from_the_user(tmp_path):
    rng = np.random.default_rng(0)
    rooms = rng.uniform(1, 6, size=(400, 2))
    rent = np.exp(4 + 0.5 * rooms[:, 0] + 0.2 * rooms[:, 1] + 0.1 * rng.normal(size=400))
    rent[:8] /= 10
    path = tmp_path / "rents.csv"
    pd.DataFrame({"a": rooms[:, 0], "b": rooms[:, 1], "rent": rent}).to_csv(path, index=False)
    result = call(
        "outliers", path, "--targets", "rent", "--effort", "fast", "--out", f"{path}.out.csv"
    )
    said = " ".join((result.stdout + result.stderr).split())
    assert "judged on the scale of logarithms: 'rent'" in said
    found = pd.read_csv(f"{path}.out.csv")
    assert sorted(found["gorelm.row"][found["gorelm.flagged"]]) == list(range(8))


def test_predict_matches_columns_by_name(dirty, tmp_path):
    model = dirty.folder / "m.gorelm"
    new = make_dirty(12, seed=1)
    expected = load(model).predict(new[["id", "size", "colour", "code", "same"]])
    # other order, more columns, no ignored ones; and codes that look like numbers
    new.assign(extra=1)[["extra", "code", "colour", "weight", "size", "id"]].to_csv(
        tmp_path / "new.csv", index=False
    )
    out = tmp_path / "p.parquet"
    result = call("predict", model, tmp_path / "new.csv", "--out", out, "--keep", "id")
    assert "ignored: 'extra'" in result.stderr
    predicted = pd.read_parquet(out)
    assert list(predicted) == ["id", "price", "weight"]
    assert predicted["id"].tolist() == new["id"].tolist()
    np.testing.assert_array_equal(predicted[["price", "weight"]], expected)
    only_numbers = new[new["code"] != "A1"]
    only_numbers.to_csv(tmp_path / "new.csv", index=False)
    result = call("predict", model, tmp_path / "new.csv", "--out", "-")
    assert "not among" not in result.stderr
    rows = [[float(x) for x in line.split(",")] for line in result.stdout.splitlines()[1:]]
    np.testing.assert_allclose(rows, expected[new["code"] != "A1"], rtol=1e-12)


def test_unseen_words_and_damage_are_said(dirty, tmp_path):
    new = make_dirty(12, seed=1).assign(colour="violet").astype({"size": object})
    new.loc[0, "size"] = "ERR"
    new.to_csv(tmp_path / "new.csv", index=False)
    arguments = [dirty.folder / "m.gorelm", tmp_path / "new.csv", "--out", tmp_path / "p.csv"]
    notes = call("predict", *arguments).stderr
    assert "note: Column 'colour': unseen category 'violet' in 12 rows" in notes
    assert "note: Column 'size': 1 cell is no finite number ('ERR')" in notes


def test_inspect(dirty):
    screen = call("inspect", dirty.folder / "m.gorelm").stdout
    said = " ".join(screen.split())
    model = gorelm.load(dirty.folder / "m.gorelm")
    rows = model.outlier_mask_.sum()
    cells = model.cell_mask_[~model.outlier_mask_].sum()
    for sentence in (
        "m.gorelm: TableRegressor of RobustELMRegressor",
        "Targets (2): price, weight",
        "id ignored",
        "colour categories blue, green, red",
        "if missing",
        "Certificate:",
        f"Training rows: 80, of which {rows} were flagged, and {cells} cell",
        gorelm.__version__,
    ):
        assert sentence in said


@pytest.mark.usefixtures("few_layers")
def test_inspect_and_predict_with_a_model_made_in_python(tmp_path):
    data = make_multitarget(40, 3, 2, random_state=0)
    names = ["a", "b", "c"]
    frame = pd.DataFrame(data.X, columns=names)
    frame.to_csv(tmp_path / "x.csv", index=False)
    for X, said in ((frame, "Inputs (3): a, b, c"), (data.X, "Inputs (3): without names")):
        model = GORELMRegressor(0.5, n_hidden=7, random_state=0).fit(X, data.T)
        save(model, tmp_path / "m.gorelm")
        screen = call("inspect", tmp_path / "m.gorelm").stdout
        assert said in screen
        assert "n_hidden=7" in screen
        assert "lam=0.5" in screen
        out = tmp_path / "p.csv"
        call("predict", tmp_path / "m.gorelm", tmp_path / "x.csv", "--out", out)
        np.testing.assert_array_equal(pd.read_csv(out), model.predict(X))
        assert list(pd.read_csv(out)) == ["y0", "y1"]


# -- screens -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("n_targets", [1, 50])
def test_screens_fit_into_80_columns(tmp_path, n_targets):
    data = make_multitarget(60, 30, n_targets, outlier_ratio=0.2, random_state=0)
    names = [f"measurement of the input, number {j}, in metres" for j in range(30)]
    targets = [f"a target that has a long name, number {j}" for j in range(n_targets)]
    frame = pd.DataFrame(np.hstack([data.X, 1e7 * data.T]), columns=[*names, *targets])
    frame["word"] = ["quite a long word " * 3 + str(i % 9) for i in range(60)]
    frame.loc[:20, names] = np.nan
    frame[[*names, "word", *targets]].to_csv(tmp_path / "t.csv", index=False)
    arguments = [tmp_path / "t.csv", "--targets", n_targets, *QUICK]
    screen = call("fit", *arguments, "--model", tmp_path / "m.gorelm").stdout
    inspected = call("inspect", tmp_path / "m.gorelm").stdout
    lines = (screen[: screen.index("Written:")] + inspected).splitlines()
    assert not [line for line in lines if len(line) > 80]
    assert ("30 more targets" in screen) == (n_targets == 50)


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize("suffix", [".parquet", ".arff"])
def test_files_without_a_header_line(tmp_path, suffix, monkeypatch):
    frame = make_dirty()[["size", "colour", "price"]]
    path = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        head = ["@relation r", "@attribute size real", "@attribute colour {red,blue,green}"]
        rows = frame.to_csv(index=False, header=False, na_rep="?")
        path.write_text("\n".join([*head, "@attribute price real", "@data", rows]))
    screen = call("outliers", path, "--targets", "price", *QUICK).stdout
    head = next(line for line in screen.splitlines() if "finding  target" in line)
    assert ("line" in head) == (suffix == ".arff")
    assert re.search(r"\n +(56 +)?50 +row +price +1,000,000 ", screen)
    assert "has the names" not in screen


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_dirty(12).to_csv("t.csv", index=False)
    make_dirty(5).to_csv("few.csv", index=False)
    (tmp_path / "head.csv").write_text("id,size,colour,code,same\n")
    (tmp_path / "text.gorelm").write_text("no model\n")
    (tmp_path / "folder.csv").mkdir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("fit t.csv --targets prise", "no column 'prise'; did you mean 'price'"),
        ("fit t.csv --targets colour", "target 'colour' is not numeric: it holds text"),
        ("fit t.csv --targets 7", "a number from 1 to 6"),
        ("fit t.csv --targets price --features price", "both a feature and a target"),
        ("fit t.csv --targets price --features same,id", "no column of X is left"),
        ("fit few.csv --targets price", "5 rows; at least 10 are needed"),
        ("fit absent.csv --targets price", "There is no file 'absent.csv'"),
        ("fit folder.csv --targets price", "the folder folder.csv has no Parquet file"),
        ("fit t.xls --targets price", "There is no file 't.xls'"),
        ("fit t.csv --targets price --model no/m.gorelm", "There is no folder 'no'"),
        ("fit t.csv --targets price --model t.csv", "is the table itself"),
        ("fit t.csv --targets price --report r.pdf", "must end in .html or .htm"),
        ("outliers t.csv --targets price --out o.xls", "must end in .csv or"),
        ("outliers t.csv --targets price --out folder.csv", "is a folder"),
        ("predict text.gorelm t.csv --out p.csv", "text.gorelm is not a model file"),
        ("predict absent.gorelm t.csv --out p.csv", "absent.gorelm"),
        ("inspect text.gorelm", "text.gorelm is not a model file"),
        ("inspect folder.csv", "folder.csv"),
        ("export text.gorelm --onnx m.onnx", "text.gorelm is not a model file"),
        ("export text.gorelm --onnx m.txt", "must end in .onnx."),
    ],
)
def test_errors_are_one_line(table, arguments, message):
    result = call(*arguments.split(), code=1)
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    "command", ["fit t.csv", "fit", "outliers t.csv", "predict a b", "inspect"]
)
def test_incomplete_lines(table, command):
    assert "Missing" in call(*command.split(), code=2).stderr


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"size": "length"}, [], "lacks 'size', which the model needs; "),
        ({"size": "Size", "code": "c"}, [], "lacks 'size' and 'code', which the model needs."),
        ({}, ["--keep", "idd"], "no column 'idd'; did you mean 'id'"),
        ({}, ["--keep", "price"], "'price' is predicted"),
    ],
)
def test_columns_that_do_not_fit_the_model(dirty, tmp_path, columns, options, message):
    path = tmp_path / "new.csv"
    make_dirty(12).rename(columns=columns).to_csv(path, index=False)
    out = tmp_path / "p.csv"
    model = dirty.folder / "m.gorelm"
    assert message in call("predict", model, path, "--out", out, *options, code=1).stderr
    assert not out.exists()


def test_a_table_without_rows_to_predict(dirty, table):
    arguments = [dirty.folder / "m.gorelm", "head.csv", "--out", "p.csv"]
    assert "no rows" in call("predict", *arguments, code=1).stderr


def test_export_of_a_table_with_words_and_gaps(dirty, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    model = dirty.folder / "m.gorelm"
    call("export", model, "--onnx", tmp_path / "m.onnx")
    new = make_dirty(12, seed=1).assign(colour=["red", "violet", ""] * 4)
    session = runtime.InferenceSession(tmp_path / "m.onnx")
    words = {name: new[[name]].to_numpy(object) for name in ("colour", "code")}
    (predicted,) = session.run(None, {"X": new[["size"]].to_numpy(), **words})
    with pytest.warns(UserWarning, match="violet"):
        expected = load(model).predict(new[["id", "size", "colour", "code", "same"]])
    np.testing.assert_allclose(predicted, expected, rtol=1e-9, atol=1e-9)


def test_a_model_without_a_graph_is_refused(tmp_path):
    pytest.importorskip("onnx")
    frame = make_dirty(30)[["size", "colour", "price"]]
    model = TableRegressor(Ridge()).fit(frame[["size", "colour"]], frame["price"])
    save(model, tmp_path / "m.gorelm")
    refused = call("export", tmp_path / "m.gorelm", "--onnx", tmp_path / "m.onnx", code=1)
    assert "Ridge cannot be written as ONNX" in refused.stderr


def test_export_of_numbers(quarter_wrong, tmp_path):
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    call("export", quarter_wrong.folder / "t.gorelm", "--onnx", tmp_path / "t.onnx")
    X = quarter_wrong.frame.loc[500:, quarter_wrong.data.feature_names]
    session = runtime.InferenceSession(tmp_path / "t.onnx")
    (predicted,) = session.run(None, {"X": X.to_numpy()})
    expected = load(quarter_wrong.folder / "t.gorelm").predict(X)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("few_layers")
def test_report_of_a_fit(tmp_path):
    make_dirty(60).to_csv(tmp_path / "t.csv", index=False)
    page = tmp_path / "page.html"
    call("fit", tmp_path / "t.csv", "--targets", "price,weight", "--report", page, *QUICK)
    text = page.read_text(encoding="utf-8")
    assert "price" in text
    assert "weight" in text
