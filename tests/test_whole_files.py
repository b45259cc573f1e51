"""Files are there whole, or as they were; and only where a file may be."""

import errno
import os
import socket
import stat

import pytest

from gorelm import _files
from gorelm._files import place_of, whole_file, write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and permissions of POSIX")


def test_a_new_file_and_one_that_is_replaced(tmp_path):
    path = tmp_path / "a"
    write_whole(path, b"one ", b"two")
    assert path.read_bytes() == b"one two"
    write_whole(str(path), b"three")
    assert path.read_bytes() == b"three"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "x"), KeyboardInterrupt(), ValueError()])
def test_whatever_fails_the_old_file_stays(tmp_path, error):
    def write():
        with whole_file(path) as file:
            file.write(b"new" * 10**6)
            raise error

    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_disk_that_fails_is_named(tmp_path, monkeypatch, step):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a"
    path.write_bytes(b"old")
    target = _files.Path if step == "chmod" else _files.os
    monkeypatch.setattr(target, step, fail)
    with pytest.raises(OSError, match="No space") as caught:
        write_whole(path, b"new")
    assert caught.value.filename == str(path)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@posix
def test_permissions_are_kept(tmp_path):
    path = tmp_path / "a"
    before = os.umask(0o027)
    try:
        write_whole(path, b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640  # those of any new file
    for mode in (0o600, 0o664, 0o755):
        path.chmod(mode)
        write_whole(path, b"newer")
        assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
def test_links_stay_and_their_targets_are_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "target"
    target.write_bytes(b"old")
    (tmp_path / "near").symlink_to("far/target")
    (tmp_path / "link").symlink_to(tmp_path / "near")
    (tmp_path / "dangling").symlink_to("far/new")
    write_whole(tmp_path / "link", b"new")
    write_whole(tmp_path / "dangling", b"first")
    assert target.read_bytes() == b"new"
    assert (tmp_path / "far" / "new").read_bytes() == b"first"
    assert all((tmp_path / name).is_symlink() for name in ("near", "link", "dangling"))
    assert sorted(os.listdir(tmp_path / "far")) == ["new", "target"]


@posix
def test_only_regular_files_are_written_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    os.mkfifo("fifo")
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.symlink("/dev/null", "device")
    os.symlink("loop", "loop")
    os.symlink("nowhere/file", "astray")
    before = {name: os.lstat(name).st_mode for name in os.listdir()}
    for name in [*before, "absent/file", "fifo/file", "/dev/null"]:
        for write in (place_of, write_whole):
            with pytest.raises(OSError, match=r"folder|not a regular file|symbolic|directory"):
                write(name)
    assert {name: os.lstat(name).st_mode for name in os.listdir()} == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@posix
def test_write_protected_files_are_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(_files.os, "access", lambda *_: False)  # as for an ordinary user
    with pytest.raises(PermissionError, match="write-protected"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
