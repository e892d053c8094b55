"""A command that is ended at any moment leaves nothing: `python -m benchmarks.kills 50` asks that 200 times."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from benchmarks.kills import killed

from ddx_tools.sources.packed_bundle import pack

SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL]


@pytest.mark.needs("linux", "ptrace")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_look_that_is_ended_leaves_nothing(number: signal.Signals) -> None:
    assert not killed(number, 1.5, 1)


@pytest.mark.long
@pytest.mark.needs("linux", "ptrace")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("turn", range(6))
def test_at_random_moments_too(number: signal.Signals, turn: int) -> None:
    assert not killed(number, random.Random(turn).uniform(0.05, 5), turn)


def test_a_bundle_is_packed_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle").mkdir()

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tarfile.TarFile.add", fail)
    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "bundle", tmp_path / "incident.tar.zst")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
