"""A host without ddx: what is sent there runs with the system's Python alone, and answers as a host with ddx does."""

from __future__ import annotations

import ast
import datetime as dt
import io
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_secrets import HELD_OUT_LAST, HELD_OUT_LATER, PLANTED, coloured, ordinary_lines

from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.payloads.host_agent import backports
from ddx_tools.redaction.text import redact
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.remote.agent import packed, unpacked
from ddx_tools.sources.remote.archive import MOST_BYTES, archive, older
from ddx_tools.sources.remote.remote_host import PYTHON_THERE, NoAgent, RemoteHost

BARE = ("env", "-i", "PATH=/usr/bin:/bin", *PYTHON_THERE)
SECRET = "hQ7xk2LmZpT90sK4vW8bN3cY6"

pytestmark = pytest.mark.slow


def test_its_answers_are_those_of_a_host_with_ddx(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("step 1\nstep 2\n")
    here = LocalHost()
    with RemoteHost(BARE, 60.0) as host:
        assert host.name == here.name
        for call in (
            HostCall("read", str(tmp_path / "rank0.log"), {"max_bytes": 5}),
            HostCall("read", str(tmp_path / "rank0.log"), {"max_bytes": 5, "tail": True}),
            HostCall("read", str(tmp_path / "none"), {"max_bytes": 5}),
            HostCall("look", str(tmp_path / "rank0.log"), {"max_bytes": 5, "end_bytes": 3}),
            HostCall("walk", str(tmp_path)),
            HostCall("glob", f"{tmp_path}/*"),
            HostCall("run", '["echo", "well"]', {"timeout_s": 5.0, "max_bytes": 100}),
        ):
            assert host.answer(call) == here.answer(call), call
        assert host.locate(str(tmp_path / "rank0.log"), max_bytes=100).data == b"step 1\nstep 2\n"
        pids = {row["pid"] for row in json.loads(host.processes().data)["processes"]}
        assert os.getpid() in pids
        with pytest.raises(NotFound):
            host.read(str(tmp_path / "none"))


@pytest.mark.needs("ptrace")
def test_stacks_are_read_by_the_py_spy_that_came_along() -> None:
    program = "import time\ndef sleeps_long():\n    print('up', flush=True)\n    time.sleep(60)\nsleeps_long()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as asleep:
        assert asleep.stdout is not None
        asleep.stdout.readline()
        with RemoteHost(BARE, 60.0) as host:
            stack = host.stack(asleep.pid)
        asleep.kill()
    assert b"sleeps_long" in stack.data


def test_secrets_do_not_leave_it(tmp_path: Path) -> None:
    """What it writes to its connection is kept here, as it was written."""
    log, sent = tmp_path / "rank0.log", tmp_path / "sent"
    log.write_text(f"WANDB_API_KEY={SECRET}\nstep 1\n")
    tee = ["bash", "-c", f"{' '.join(BARE)} | tee {sent}"]
    with RemoteHost(tee, 60.0) as host:
        assert host.read(str(log)).data == b"WANDB_API_KEY=<redacted>\nstep 1\n"
        assert b"<redacted>" in host.run(["cat", str(log)]).data
        assert b"<redacted>" in host.locate(str(log), max_bytes=1 << 20).data
    words = [line.split()[3] for line in sent.read_bytes().splitlines() if line.startswith(b"ddx1 reply ")]
    assert len(words) == 3
    assert not any(SECRET.encode() in unpacked(word).data for word in words)


def test_it_takes_out_what_is_taken_out_here(tmp_path: Path) -> None:
    """Its expressions are `re`'s, and remember lines; here they are RE2's."""
    lines = [line for line, _ in [*PLANTED, *HELD_OUT_LATER, *HELD_OUT_LAST]]
    texts = [*lines, "\n".join([*ordinary_lines(300), *lines, *ordinary_lines(300)])]
    texts += [coloured(line, secret).decode("utf-8", "replace") for line, secret in PLANTED[:40]]
    (tmp_path / "agent.zip").write_bytes(archive())
    program = textwrap.dedent("""\
        import json, sys
        sys.path.insert(0, sys.argv[1])
        import ddx_backports
        ddx_backports.install()
        from ddx_tools.redaction.text import redact
        print(json.dumps([redact(text) for text in json.load(sys.stdin)]))
    """)
    done = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", "python3", "-I", "-c", program, str(tmp_path / "agent.zip")],
        input=json.dumps(texts), capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout) == [redact(text) for text in texts]


def test_nothing_of_it_stays_behind(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    with RemoteHost(["env", "-i", f"TMPDIR={tmp_path}", *BARE[2:]], 60.0) as host:
        host.walk(str(tmp_path))
        (running,) = set(psutil.Process().children()) - before
        assert running.cmdline() == list(PYTHON_THERE)
    assert not running.is_running()
    assert not list(tmp_path.iterdir())


def printing(*lines: str, then: str = "cat >/dev/null") -> tuple[str, ...]:
    return "bash", "-c", "; ".join([*(f"echo '{line}'" for line in lines), then])


def test_a_host_that_cannot_run_it_says_why() -> None:
    machine = os.uname().machine
    for lines, words in (
        (
            printing("Welcome to node-1", "ddx1 ready 3.7 linux x86_64"),
            "its python3 is 3.7, but 3.8 or newer is needed",
        ),
        (printing(f"ddx1 ready 3.12 darwin {machine}"), "a different machine type"),
        (printing("ddx1 ready 3.12 linux riscv64"), "a different machine type"),
        (printing(f"ddx1 ready 3.12 linux {machine}", "ddx1 hello no JSON"), "is not from ddx"),
        (("bash", "-c", "echo bash: python3: command not found >&2; exit 127"), "python3: command not found"),
        (("bash", "-c", "exit 0"), "it printed nothing"),
        (("no-such-program",), "No such file or directory"),
    ):
        with pytest.raises(NoAgent, match=words):
            RemoteHost(lines, 20.0)


def test_hostile_answers_cost_only_themselves() -> None:
    machine, hello = os.uname().machine, 'ddx1 hello {"host": "node-1", "clock_s": 1.0}'
    garbled = ["ddx1 reply 1 ####", "ddx1 reply x eJw=", "ddx1 reply 99 eJw=", "", "more noise", "ddx1 reply"]
    with RemoteHost(printing(f"ddx1 ready 3.12 linux {machine}", hello, *garbled, then="sleep 1; exit"), 30.0) as host:
        assert host.name == "node-1"
        with pytest.raises(HostError, match=r"connection to node-1 ended|cannot be read"):
            host.read("/etc/hostname")


def test_a_silent_host_is_not_waited_for_beyond_its_time() -> None:
    hello = 'ddx1 hello {"host": "node-1", "clock_s": 1.0}'
    lines = printing(f"ddx1 ready 3.12 linux {os.uname().machine}", hello, then="sleep 60")
    with RemoteHost(lines, 2.0) as host, pytest.raises((TimedOut, HostError)):
        host.read("/etc/hostname")


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_refused(word: bytes) -> None:
    try:
        unpacked(word)
    except ValueError:
        return


@given(
    st.builds(Reply, st.binary(max_size=50), st.integers(-9, 9), st.booleans(), end=st.none() | st.binary(max_size=9))
)
def test_an_answer_comes_as_it_was_sent(reply: Reply) -> None:
    assert unpacked(packed(reply)) == reply


def test_all_that_is_sent_is_python_3_8_and_small_enough() -> None:
    assert len(archive()) <= MOST_BYTES
    with zipfile.ZipFile(io.BytesIO(archive())) as members:
        for name in members.namelist():
            if name.endswith(".py"):
                ast.parse(members.read(name), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("now", "then"),
    [
        ("x = name.removesuffix('.py')", "x = ddx_backports.without_suffix(name, '.py')"),
        ("y = dict(zip(a, b, strict=True))", "y = dict(zip(a, b))"),
        ("z = isinstance(v, int | float | None)", "z = isinstance(v, (int, float, None))"),
        ("Counts = Counter[str]", "Counts = Counter"),
        ("@dataclass(frozen=True, slots=True)\nclass A:\n    pass", "@dataclass(frozen=True)\nclass A:\n    pass"),
        ("first = rows[0]", "first = rows[0]"),
        ("both = one | {1: 2}", "both = ddx_backports.united(one, {1: 2})"),
        ("one.row |= other", "one.row = ddx_backports.united_in_place(one.row, other)"),
        ("at = dt.datetime.fromisoformat(text)", "at = ddx_backports.moment(dt.datetime, text)"),
        (
            "def f(a: int | None=None) -> str | None:\n    b: int | str = 1",
            "def f(a: int | None=None) -> str | None:\n    b: int | str = 1",
        ),
    ],
)
def test_sources_are_written_for_older_pythons(now: str, then: str) -> None:
    assert older(ast.parse(now)) == then


def test_its_modules_load_where_the_library_lacks_newer_names(tmp_path: Path) -> None:
    """`msgspec` is the one package that some modules want and such a host lacks; what needs it is asked here."""
    (tmp_path / "agent.zip").write_bytes(archive())
    program = textwrap.dedent("""\
        import datetime, enum, functools, importlib, itertools, pathlib, sys, unittest.mock, zipfile
        for place, name in ((datetime, "UTC"), (enum, "StrEnum"), (itertools, "pairwise"), (functools, "cache"),
                            (pathlib.Path, "readlink"), (pathlib.PurePath, "is_relative_to")):
            if hasattr(place, name):
                delattr(place, name)
        sys.modules["psutil"] = unittest.mock.MagicMock()  # its extension is not loaded from a zip
        sys.path.insert(0, sys.argv[1])
        import ddx_backports
        ddx_backports.install()
        for member in zipfile.ZipFile(sys.argv[1]).namelist():
            if member.startswith("ddx_tools/") and member.endswith(".py") and "__init__" not in member:
                try:
                    importlib.import_module(member[:-3].replace("/", "."))
                except ModuleNotFoundError as error:
                    assert error.name == "msgspec", (member, error)
    """)
    bare = ["env", "-i", "PATH=/usr/bin:/bin", "python3", "-I", "-c", program, str(tmp_path / "agent.zip")]
    done = subprocess.run(bare, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


ZONES = st.none() | st.integers(-23 * 60, 23 * 60).map(lambda east: dt.timezone(dt.timedelta(minutes=east)))


@given(st.datetimes(timezones=ZONES), st.sampled_from("T "), st.sampled_from(["auto", "milliseconds", "minutes"]))
def test_times_are_read_as_python_3_11_reads_them(at: dt.datetime, between: str, precision: str) -> None:
    text = at.isoformat(between, precision)
    for form in (text, text.replace(".", ","), text.replace("+00:00", "Z")):
        assert backports.moment(dt.datetime, form) == dt.datetime.fromisoformat(form)


@pytest.mark.parametrize(
    "text", ["", "2026", "2026-13-01", "2026-11-28T25:00:00", "2026-11-28T10:00:00+", "x2026-11-28"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        backports.moment(dt.datetime, text)


def test_dictionaries_and_sets_are_united() -> None:
    row = {"a": 1, "b": 1}
    assert backports.united(row, {"b": 2}) == {"a": 1, "b": 2} and row == {"a": 1, "b": 1}
    assert backports.united_in_place(row, {"b": 3}) is row and row["b"] == 3
    assert backports.united({1}, {2}) == {1, 2} and backports.united_in_place({1}, {2}) == {1, 2}


def test_what_is_not_known_how_to_write_is_refused() -> None:
    with pytest.raises(SyntaxError):
        older(ast.parse("match x:\n    case 1:\n        pass"))
