"""What the README shows is what the code does."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.pages import blocks as blocks_of_page

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def table(text):
    return {
        name.strip(): float(error)
        for name, error in re.findall(r"^  (\S.*?) +(\d\.\d{3})$", text, flags=re.M)
    }


def test_python_blocks_run(tmp_path, monkeypatch):
    first, second, third, files = blocks("python")
    names: dict = {}
    exec(first, names)
    assert names["model"].contaminated_
    flagged = np.flatnonzero(names["model"].outlier_mask_)
    assert np.isin(np.flatnonzero(names["data"].planted), flagged).mean() > 0.95
    assert names["model"].predict(names["data"].X[:2]).shape == (2, 3)
    exec(second, names)
    assert names["model"].cv_outlier_mask_[names["data"].planted].mean() > 0.95
    exec(third, names)
    assert names["model"].n_samples_seen_ == 600
    before = names["model"].predict(names["data"].X)
    monkeypatch.chdir(tmp_path)
    exec(files, names)
    assert (names["model"].predict(names["data"].X) == before).all()
    assert (tmp_path / "model.onnx").stat().st_size > 10_000


def test_the_table_is_that_of_the_home_page():
    """Its command, output and session, which tests/test_docs.py runs there."""
    page = (ROOT / "docs" / "index.rst").read_text(encoding="utf-8")
    home = {code for _, code, _ in blocks_of_page(page)}
    (session,) = blocks("pycon")
    (command,) = (code for code in blocks("console") if "flats.csv" in code)
    (shown,) = (code for code in blocks("text") if "flats.csv" in code)
    assert {session, command, shown} <= home


@pytest.mark.slow
def test_demo_prints_what_the_readme_says(tmp_path):
    picture = tmp_path / "demo.png"
    command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--out", str(picture)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (shown,) = (block for block in blocks("text") if "aRRMSE" in block)
    assert table(shown)
    assert table(printed) == pytest.approx(table(shown), abs=0.02)
    assert picture.stat().st_size > 20_000
    recall = float(re.search(r"recall (\d\.\d\d)", printed)[1])
    assert recall >= 0.95


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_modules_are_there_after_import_gorelm_and_no_extra():
    names = ("datasets", "diagnostics", "io", "metrics", "onnx", "path", "stream")
    extras = {"dask", "distributed", "mapie", "matplotlib", "onnx", "skops", "torch"}
    code = "import sys, gorelm, gorelm.estimators, gorelm.intervals; "
    code += "; ".join(f"gorelm.{name}.__doc__" for name in names)
    code += f"; print(*sorted({extras} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []
