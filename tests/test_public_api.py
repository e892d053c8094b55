"""The public interface: what `ddx_tools` exports, and that the page about it runs as it stands."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import ddx_tools

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/api.md"


def test_what_is_exported_is_there() -> None:
    for name in ddx_tools.__all__:
        assert getattr(ddx_tools, name)
    with pytest.raises(AttributeError):
        _ = ddx_tools.nothing_of_the_kind


def test_the_page_names_what_is_exported() -> None:
    text = PAGE.read_text("utf-8")
    assert [name for name in ddx_tools.__all__ if not name.startswith("_") and f"`{name}" not in text] == []


def test_the_example_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "tests/fixtures/flight_records/extra_all_reduce-fault", tmp_path / "dumps")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    exec(compile(example, str(PAGE), "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("diagnosed")
    assert "'size_bytes':" in printed
