"""One way to replace a file: whole, or not at all."""

import os

import pytest

from headrace._files import replaced, write_whole
from headrace._memory import peak_memory, process_memory, resident_memory


@pytest.mark.parametrize("contended", [False, True])
def test_a_block_that_fails_leaves_the_old_file_alone(tmp_path, contended):
    write_whole(tmp_path / "file", "before", contended=contended)
    with pytest.raises(KeyError), replaced(tmp_path / "file", contended=contended) as aside:
        aside.write_text("half of")
        raise KeyError
    assert (tmp_path / "file").read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_writers_of_one_file_do_not_share_the_file_beside_it(tmp_path, monkeypatch):
    with replaced(tmp_path / "file", contended=True) as ours:
        monkeypatch.setattr(os, "getpid", lambda: 1)
        with replaced(tmp_path / "file", contended=True) as theirs:
            assert theirs != ours
            theirs.write_text("theirs")
        ours.write_text("ours")
    assert (tmp_path / "file").read_text() == "ours"
    assert len(list(tmp_path.iterdir())) == 1


def test_memory_of_the_process_grows_with_what_it_holds():
    before = resident_memory()
    held = bytearray(os.urandom(1)) * (64 << 20)
    assert resident_memory() - before > 48 << 20
    assert peak_memory() >= resident_memory()
    assert process_memory()["peak"] >= len(held)


def test_a_pipe_or_a_device_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device or a pipe"):
        write_whole(tmp_path / "pipe", "more")
    assert [(file.name, file.is_fifo()) for file in tmp_path.iterdir()] == [("pipe", True)]
