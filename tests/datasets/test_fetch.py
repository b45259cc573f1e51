import builtins
import gzip
import hashlib
import os
import socket
import stat
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product

import pooch
import pytest

from gorelm.datasets import MULAN_TARGETS, DownloadError, fetch_mulan, list_mulan, load_mulan
from gorelm.datasets.fetch import SOURCES, Source, find_mulan

# long enough for a cut to fall between rows, and rows wide enough for one within
CONTENT = (
    "@relation r\n@attribute a numeric\n@attribute b numeric\n@attribute c numeric\n@data\n"
    + "1000,2000,3000\n" * 2000
).encode()
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Answers the n-th request by the n-th of `answers`, and later ones by the last."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = ["whole"]
        self.requests = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/enb.arff"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        answer = self.server.answers[min(self.server.requests, len(self.server.answers) - 1)]
        self.server.requests += 1
        body, length = CONTENT, len(CONTENT)
        if answer == "missing":
            self.send_error(404)
            return
        if answer == "other":
            body = CONTENT.replace(b"3000", b"3001")
        elif answer == "apology":
            body = b"<html>Sorry, too many requests.</html>"
            length = len(body)
        elif answer == "cut":  # the connection breaks off
            body = CONTENT[:-1004]
        elif answer == "short":  # the server itself has half a file only
            body = CONTENT[:-1004]
            length = len(body)
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.delenv("GORELM_DATA", raising=False)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # pooch's pause between attempts
    with Server() as server:
        # polls for its end once in so many seconds
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setitem(SOURCES, "enb", Source(server.url, SHA256))
        yield server
        server.shutdown()
        thread.join()


def test_a_file_is_downloaded_once(server, tmp_path):
    home = tmp_path / "new" / "folder"
    path = fetch_mulan("enb", home)
    assert path == home / "enb.arff"
    assert path.read_bytes() == CONTENT
    assert stat.S_IMODE(path.stat().st_mode) == 0o644  # others may share the folder
    assert os.listdir(home) == ["enb.arff"]
    assert fetch_mulan("enb", home) == path
    assert load_mulan("enb", data_home=home).data.shape == (2000, 1)
    assert server.requests == 1


@pytest.mark.parametrize("where", ["argument", "variable", "cache"])
def test_a_download_goes_to_the_data_home(server, tmp_path, monkeypatch, where):
    homes = {name: tmp_path / name for name in ("argument", "variable", "cache")}
    monkeypatch.setattr(pooch, "os_cache", lambda project: homes["cache"] / project)
    if where != "cache":
        monkeypatch.setenv("GORELM_DATA", str(homes["variable"]))
    load_mulan("enb", data_home=homes["argument"] if where == "argument" else None)
    found = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.arff")]
    assert found == ["cache/gorelm/enb.arff" if where == "cache" else f"{where}/enb.arff"]


@pytest.mark.parametrize("suffix", [".arff", ".arff.gz"])
def test_a_local_file_is_preferred_whatever_its_checksum(server, tmp_path, suffix):
    mine = CONTENT.replace(b"1000", b"7")
    path = tmp_path / f"enb{suffix}"
    path.write_bytes(gzip.compress(mine) if suffix.endswith("gz") else mine)
    assert fetch_mulan("enb", tmp_path) == path
    assert load_mulan("enb", data_home=tmp_path).data[0, 0] == 7
    assert server.requests == 0


def test_no_download_unless_allowed(server, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"enb\.arff or enb\.arff\.gz in .*GORELM_DATA"):
        load_mulan("enb", data_home=tmp_path, download_if_missing=False)
    with pytest.raises(FileNotFoundError):
        fetch_mulan("enb", tmp_path, download_if_missing=False)
    assert server.requests == 0


@pytest.mark.parametrize(
    ("answer", "sha256"),
    # without a checksum nothing can tell a whole file from another
    [*product(["missing", "apology", "cut", "short"], [SHA256, None]), ("other", SHA256)],
)
def test_a_failed_download_leaves_nothing(server, tmp_path, monkeypatch, answer, sha256):
    monkeypatch.setitem(SOURCES, "enb", Source(server.url, sha256))
    server.answers = [answer]
    with pytest.raises(DownloadError) as caught:
        load_mulan("enb", data_home=tmp_path)
    assert os.listdir(tmp_path) == []
    assert server.requests == 2  # once more, and not for ever
    for hint in ("'enb'", server.url, repr(str(tmp_path)), "nothing was kept", "GORELM_DATA"):
        assert hint in str(caught.value)
    if answer == "missing":
        assert "404" in str(caught.value)
    if answer == "other":
        assert SHA256 in str(caught.value)


@pytest.mark.parametrize("answer", ["cut", "other", "missing"])
def test_a_second_attempt_may_succeed(server, tmp_path, answer):
    server.answers = [answer, "whole"]
    assert fetch_mulan("enb", tmp_path).read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["enb.arff"]


def test_an_interrupted_download_leaves_nothing(server, tmp_path, monkeypatch):
    def interrupted(self, url, output_file, store):
        with open(output_file, "wb") as file:
            file.write(CONTENT[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_mulan("enb", tmp_path)
    assert os.listdir(tmp_path) == []


def test_no_network(server, tmp_path, monkeypatch):
    with socket.socket() as nobody:  # bound, but not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/enb.arff"
        monkeypatch.setitem(SOURCES, "enb", Source(url, SHA256))
        with pytest.raises(DownloadError, match=r"(?s)refused.*by other means.*GORELM_DATA"):
            load_mulan("enb", data_home=tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_a_file(server, tmp_path):
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "folder"):
        with pytest.raises(NotADirectoryError, match=r"Cannot write enb\.arff to .*GORELM_DATA"):
            fetch_mulan("enb", home)
    assert server.requests == 0


def test_an_unwritable_folder(server, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):  # not by chmod: root may write anywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(PermissionError, match=r"Cannot write enb\.arff to .*GORELM_DATA"):
        fetch_mulan("enb", tmp_path)
    assert server.requests == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
def test_a_folder_without_permission(server, tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PermissionError, match=r"Cannot write enb\.arff to .*GORELM_DATA"):
            fetch_mulan("enb", tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_unknown_name_suggests_the_nearest(server, tmp_path):
    with pytest.raises(ValueError, match="'scpd'; did you mean 'scpf'"):
        fetch_mulan("scpd", tmp_path)
    assert server.requests == 0


def test_progress_bar(server, tmp_path, capsys):
    server.answers = ["other", "whole"]
    fetch_mulan("enb", tmp_path, progress=True)
    shown = capsys.readouterr().out
    assert "downloading enb" in shown
    size = f"{len(CONTENT) / 1000:.1f}"
    assert f"{size}/{size} kB" in shown


@pytest.mark.parametrize(
    ("absent", "arguments", "message"),
    [
        ("pooch", {}, r'needs pooch: pip install "gorelm\[data\]"'),
        ("rich.progress", {"progress": True}, r"needs the package rich: .*gorelm\[progress\]"),
        ("pandas", {"as_frame": True}, r'needs pandas: pip install "gorelm\[data\]"'),
    ],
)
def test_missing_packages_name_their_extra(
    server, tmp_path, monkeypatch, absent, arguments, message
):
    real_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name == absent or (absent == "rich.progress" and name == "gorelm.datasets.progress"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=message):
        load_mulan("enb", data_home=tmp_path, **arguments)


def test_list_tells_sizes_and_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("GORELM_DATA", str(tmp_path))
    (tmp_path / "wq.arff.gz").write_bytes(b"")
    (tmp_path / "sf1.arff").write_bytes(b"")
    listed = {line.name: line for line in list_mulan()}
    assert list(listed) == list(MULAN_TARGETS) == list(SOURCES)
    assert listed["scpf"] == ("scpf", 1137, 23, 3, None)
    assert {name: line.path for name, line in listed.items() if line.path} == {
        "sf1": tmp_path / "sf1.arff",
        "wq": tmp_path / "wq.arff.gz",
    }
    assert [line.path for line in list_mulan(tmp_path / "elsewhere")] == [None] * len(SOURCES)


@pytest.mark.data
@pytest.mark.parametrize("name", SOURCES)
def test_real_files_have_the_listed_sizes_and_checksums(name):
    if not os.environ.get("GORELM_DATA"):
        pytest.skip("GORELM_DATA is not set")
    path = find_mulan(name) or pytest.skip(f"no file of {name}")
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    if SOURCES[name].sha256:
        assert hashlib.sha256(content).hexdigest() == SOURCES[name].sha256
    line = next(line for line in list_mulan() if line.name == name)
    lines = content.lower().split(b"@data")[1].splitlines()
    rows = [row for row in lines if row.strip() and not row.startswith(b"%")]
    assert len(rows) == line.rows
    assert {row.count(b",") + 1 for row in rows} == {line.features + line.targets}
