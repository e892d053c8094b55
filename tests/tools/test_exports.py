"""Files that commands leave are whole, or are not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddx_tools.investigation.exports import write_file, write_pieces
from ddx_tools.model.errors import UsageError


def _full_disk() -> Iterator[bytes]:
    yield b"the first half"
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_full_disk_leaves_what_was_there_and_no_half(tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    with pytest.raises(UsageError, match="no space left"):
        write_pieces(out, _full_disk(), lambda _: None)
    assert not list(tmp_path.iterdir())
    out.write_text("of yesterday")
    with pytest.raises(UsageError, match=f"{name} cannot be written"):
        write_pieces(out, _full_disk(), lambda _: None)
    assert [file.name for file in tmp_path.iterdir()] == [name] and out.read_text() == "of yesterday"


def test_a_file_is_replaced_through_its_link_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "real.md").write_text("old")
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    write_file(tmp_path / "link.md", "new")
    assert (tmp_path / "link.md").is_symlink() and (tmp_path / "real.md").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "piped")
    assert os.read(reader, 100) == b"piped"
    os.close(reader)
