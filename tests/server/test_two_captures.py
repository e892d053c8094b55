"""Two captures to one name: one gets it, the other says so, nothing is lost; a full disk is no error of ours."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ddx_server.bundle_place import place_of_bundle
from ddx_server.render.lacking import lack_of_the_machine
from ddx_tools.investigation.session.capture import bundle_directory
from ddx_tools.model.errors import UsageError
from ddx_tools.sources.bundle import Bundle, BundleWriter, claimed
from ddx_tools.sources.hosts.ended_by_signals import ended_by_signals
from ddx_tools.sources.packed_bundle import NameTaken, pack

DDX = str(Path(sys.executable).with_name("ddx"))


def written(directory: Path, target: str) -> Path:
    """A bundle that is known by its target."""
    BundleWriter(directory, [target]).close()
    return directory


def target_of(bundle: Path) -> list[str]:
    with Bundle(bundle) as opened:
        return opened.manifest.target


def test_of_two_packed_captures_both_are_kept_and_the_second_says_so(tmp_path: Path) -> None:
    name = tmp_path / "job.tar.zst"
    with pytest.raises(UsageError) as refused, bundle_directory(name) as mine:
        written(mine, "mine")
        pack(written(tmp_path / "other", "theirs"), name)  # while this one is at work
    assert target_of(name) == ["theirs"]
    assert target_of(tmp_path / "job-2.tar.zst") == ["mine"]
    assert refused.value.exit_code == 2
    assert "stays" in refused.value.message and "job-2.tar.zst" in refused.value.message


def test_a_name_that_is_free_is_taken_as_it_is(tmp_path: Path) -> None:
    with bundle_directory(tmp_path / "job.tar.zst") as mine:
        written(mine, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["job.tar.zst"]


def test_packing_replaces_nothing(tmp_path: Path) -> None:
    bundle = written(tmp_path / "bundle", "a")
    pack(bundle, tmp_path / "a.tar.zst")
    before = (tmp_path / "a.tar.zst").read_bytes()
    with pytest.raises(NameTaken):
        pack(bundle, tmp_path / "a.tar.zst")
    assert (tmp_path / "a.tar.zst").read_bytes() == before


def test_of_many_that_take_one_directory_one_is_first(tmp_path: Path) -> None:
    start, refused, took = threading.Barrier(8), list[str](), list[BundleWriter]()

    def take(number: int) -> None:
        start.wait()
        try:
            took.append(BundleWriter(tmp_path / "bundle", [str(number)]))
        except UsageError as error:
            refused.append(error.message)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (writer,) = took
    writer.close()
    assert len(refused) == 7 and target_of(tmp_path / "bundle") == writer.manifest.target
    assert [path.name for path in (tmp_path / "bundle").iterdir()] == ["manifest.json"]


def test_a_directory_that_is_taken_is_given_back_if_nothing_came(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(tmp_path / "bundle"):
        with pytest.raises(UsageError):
            BundleWriter(tmp_path / "bundle", [])
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_of_two_that_replace_a_bundle_none_removes_what_the_other_wrote(tmp_path: Path) -> None:
    wanted = tmp_path / "job.tar.zst"
    pack(written(tmp_path / "old", "old"), wanted)
    with place_of_bundle(wanted, force=True) as place:
        assert place is not None and str(os.getpid()) in place.name
        pack(written(tmp_path / "new", "new"), place)
    assert target_of(wanted) == ["new"]


# --- a full disk ------------------------------------------------------------------------------------------------


def ddx(*words: str | Path, most_bytes: int | None = None, stdout: int = subprocess.DEVNULL) -> tuple[int, str]:
    """Exit code and what it said; no file that it writes may be larger than that."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))) if most_bytes else None
    done = subprocess.run(
        [DDX, *map(str, words)], stderr=subprocess.PIPE, text=True, check=False, preexec_fn=limit, stdout=stdout
    )
    return done.returncode, done.stderr


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "material").mkdir()
    lines = "".join(f"[rank0]: step {step} loss 1.{step}\n" for step in range(20_000))
    (tmp_path / "material/train.log").write_text(lines)
    return tmp_path / "material"


@pytest.mark.needs("linux")
@pytest.mark.parametrize("name", ["bundle", "bundle.tar.zst"])
def test_a_bundle_that_has_no_room_is_told_in_a_sentence(log: Path, tmp_path: Path, name: str) -> None:
    code, told = ddx("capture", log, "-o", tmp_path / name, most_bytes=20_000)
    assert code == 2, told
    assert "bug in ddx" not in told and "Traceback" not in told
    assert "file too large" in told or "a file is too large" in told
    assert ddx("capture", log, "-o", tmp_path / f"again-{name}") == (0, "")


@pytest.mark.needs("linux")
@pytest.mark.parametrize("words", [["why"], ["why", "--json"], ["job-log"], ["job-log", "--json"]])
def test_an_output_that_takes_nothing_more_is_told_in_a_sentence(log: Path, words: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, told = ddx(*words, log, stdout=full)
    finally:
        os.close(full)
    assert (code, told.splitlines()[0]) == (2, "the output could not be written: no space left on device")
    assert "Traceback" not in told and "Exception ignored" not in told


def test_other_errors_are_still_ours() -> None:
    assert lack_of_the_machine(RuntimeError("x")) is None
    assert lack_of_the_machine(OSError(errno.ENOENT, "no such file")) is None
    told = lack_of_the_machine(RuntimeError("IO Error: could not write: No space left on device"))
    assert told is not None and told.exit_code == 2 and "TMPDIR" in told.help


# --- a signal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_that_a_library_makes_an_error_of_still_ends_it(number: signal.Signals, code: int) -> None:
    """DuckDB says `Query interrupted`, whatever the signal raised."""
    with pytest.raises(SystemExit) as ended, ended_by_signals():
        try:
            os.kill(os.getpid(), number)
        except SystemExit:
            raise RuntimeError("Query interrupted") from None
    assert ended.value.code == code


def test_an_interrupt_that_a_library_makes_an_error_of_is_one() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), ended_by_signals():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise RuntimeError("Query interrupted") from None
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="Query failed"), ended_by_signals():
        raise RuntimeError("Query failed")
