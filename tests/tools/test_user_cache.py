"""What is kept between starts: used while it holds, and never trusted where somebody else could have written it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.knowledge.cache import kept

DATA = {"causes": ["a", "b"], "weight": 1.5, "more": None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "ddx"


class _Maker:
    """Counts how often the work was done."""

    def __init__(self, data: Any = DATA) -> None:
        self.data, self.times = data, 0

    def __call__(self) -> Any:
        self.times += 1
        return self.data


def test_the_work_is_done_once_for_each_state_of_its_sources(folder: Path) -> None:
    make = _Maker()
    assert [kept(["one", "two"], make) for _ in range(3)] == [DATA] * 3
    assert make.times == 1
    kept(["one", "two."], make)
    kept(["onetwo"], make)
    assert make.times == 3
    (one, *_) = folder.iterdir()
    assert one.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def _flip(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"x"'))


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _open_to_all(file: Path) -> None:
    file.chmod(0o666)


def _linked(file: Path) -> None:
    file.rename(file.parent.parent / "elsewhere")
    file.symlink_to(file.parent.parent / "elsewhere")


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize("spoil", [_cut, _flip, _empty, _open_to_all, _linked, _pipe])
def test_a_file_that_cannot_be_trusted_counts_as_absent_and_is_replaced(
    spoil: Callable[[Path], None], folder: Path
) -> None:
    make = _Maker()
    kept(["source"], make)
    (file,) = folder.iterdir()
    spoil(file)
    assert kept(["source"], make) == DATA
    assert make.times == 2
    assert kept(["source"], make) == DATA
    assert make.times == 2
    assert file.is_file()
    assert not file.is_symlink()


def test_a_directory_that_others_may_write_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    make = _Maker()
    assert [kept(["source"], make) for _ in range(2)] == [DATA] * 2
    assert make.times == 2
    assert not any(folder.iterdir())


@pytest.mark.needs("root")
def test_root_neither_uses_nor_makes_a_cache_in_another_users_home(folder: Path) -> None:
    os.chown(folder.parent, 12345, 12345)
    kept(["source"], _Maker())
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    kept(["source"], _Maker())
    assert not any(folder.iterdir())


def test_where_nothing_can_be_written_the_work_is_done_each_time(folder: Path) -> None:
    folder.write_text("a file is in the way")
    make = _Maker()
    assert [kept(["source"], make) for _ in range(2)] == [DATA] * 2
    assert make.times == 2


@pytest.mark.parametrize("data", [{1: "a key that is a number"}, {"day": time.gmtime}, [float("nan")]])
def test_what_json_would_change_is_not_kept(data: Any, folder: Path) -> None:
    make = _Maker(data)
    kept(["source"], make)
    assert kept(["source"], make) is data
    assert make.times == 2


def test_files_of_long_ago_go_when_another_comes(folder: Path) -> None:
    kept(["old"], _Maker())
    (old,) = folder.iterdir()
    os.utime(old, (0, 0))
    kept(["new"], _Maker())
    (new,) = folder.iterdir()
    assert new != old


def test_playbooks_out_of_the_cache_are_those_of_the_pages(folder: Path) -> None:
    first = load_playbooks.__wrapped__()
    assert any(folder.iterdir())
    again = load_playbooks.__wrapped__()
    assert (again.causes, again.symptoms) == (first.causes, first.symptoms)
