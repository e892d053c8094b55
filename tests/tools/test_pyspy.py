"""py-spy: its dumps as rows, its failures as reasons, and that no dump can hurt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stack_bundles import NAMES, packed

from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.errors import HostError, NotFound, NotPermitted, TimedOut, UnreadableInput
from ddx_tools.model.user_frames import is_user_file, module_path
from ddx_tools.parsers.python.pyspy_json import parse_pyspy
from ddx_tools.probes.stacks import native_probe as native_stacks
from ddx_tools.probes.stacks import probe as stacks
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.pyspy import explain_failure


@contextmanager
def child(*argv: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said that it is there."""
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


SLEEPER = (
    sys.executable,
    "-c",
    "import sys\ndef wait_here():\n    print(flush=True)\n    sys.stdin.read()\nwait_here()",
)


def dump(frames: list[dict[str, Any]] | None = None, **thread: Any) -> bytes:
    """A dump of one thread, in py-spy's form."""
    return json.dumps(
        [{"pid": 7, "os_thread_id": 7, "thread_name": "MainThread", "frames": frames or []} | thread]
    ).encode()


# --- live


@pytest.mark.needs("ptrace")
def test_a_waiting_process_shows_where_it_waits() -> None:
    with child(*SLEEPER) as process:
        (thread,) = parse_pyspy(LocalHost().stack(process.pid).data)
    assert (thread.pid, thread.tid, thread.is_main, thread.running) == (process.pid, process.pid, True, False)
    assert [(frame.function, frame.line) for frame in thread.frames] == [("wait_here", 4), ("<module>", 5)]


@pytest.mark.needs("ptrace", "linux")
def test_local_variables_of_a_rank_are_shown_to_who_asks_for_them() -> None:
    program = "def exchange(dst, src):\n    print(flush=True)\n    input()\nexchange(3, 1)"
    identity = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    with child(sys.executable, "-c", program, env=os.environ | identity) as rank:
        target = {"target": [str(rank.pid)]}
        seen, _ = run_probe(Step(native_stacks.PROBE, {**target, "show_locals": True}))
        unasked, _ = run_probe(Step(stacks.PROBE, target))
    of_exchange = next(row for row in seen.table if row["function"] == "exchange")
    assert json.loads(of_exchange["variables"]) == {"dst": "3", "src": "1"}
    assert "dst" not in unasked.model_dump_json()


@pytest.mark.needs("ptrace", "linux")
def test_a_stopped_process_is_read_without_pausing_it() -> None:
    with child(*SLEEPER) as process:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        with pytest.raises(NotPermitted, match="or it is stopped") as refused:
            LocalHost().stack(process.pid)
        (thread,) = parse_pyspy(LocalHost().stack(process.pid, blocking=False).data)
        assert psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
    assert "without attaching" in refused.value.help
    assert thread.frames[0].function == "wait_here"


@pytest.mark.needs("ptrace", "linux")
def test_native_frames_are_not_the_users() -> None:
    with child(*SLEEPER) as process:
        (thread,) = parse_pyspy(LocalHost().stack(process.pid, native=True).data)
    assert [frame.function for frame in thread.frames if frame.is_user] == []
    assert any(".so" in frame.file for frame in thread.frames)
    assert "wait_here" in [frame.function for frame in thread.frames]


def test_a_process_that_is_gone_is_not_found() -> None:
    with child(*SLEEPER) as process:
        pass
    with pytest.raises(NotFound, match="gone") as refused:
        LocalHost().stack(process.pid)
    assert "ddx jobs" in refused.value.help


@pytest.mark.needs("linux")
def test_a_process_that_runs_no_python_is_said() -> None:
    with child("/bin/sh", "-c", "echo; read line") as process, pytest.raises(HostError, match="not a Python process"):
        LocalHost().stack(process.pid)


@pytest.mark.needs("ptrace")
def test_the_deadline_ends_py_spy_and_leaves_the_process_running() -> None:
    with child(*SLEEPER) as process:
        before = set(psutil.Process().children())
        with pytest.raises(TimedOut, match=r"within 0\.001 s"):
            LocalHost().stack(process.pid, timeout_s=0.001)
        assert set(psutil.Process().children()) == before
        assert parse_pyspy(LocalHost().stack(process.pid).data)[0].frames


@pytest.mark.needs("root", "linux", "setpriv")
def test_a_process_of_somebody_else_is_not_permitted() -> None:
    program = (
        "from ddx_tools.sources.hosts.local import LocalHost; from ddx_tools.sources.host import HostCall\n"
        "import os, sys; os.setgroups([]); os.setuid(65534)\n"
        "reply = LocalHost('x').answer(HostCall('stack', sys.argv[1], {'timeout_s': 20}))\n"
        "print(reply.error, '|', reply.message, '|', reply.help)"
    )
    with child(*SLEEPER) as process:
        done = subprocess.run(
            [sys.executable, "-c", program, str(process.pid)], capture_output=True, text=True, check=True
        )
    assert done.stdout.startswith("not_permitted | ")
    assert "sudo" in done.stdout


# --- what it prints when it fails: the texts of py-spy 0.4.3


@pytest.mark.parametrize(
    ("stderr", "kind", "words"),
    [
        ("Error: No such process (os error 3)\n\nCaused by:\n    No such process (os error 3)", NotFound, "gone"),
        (
            "Error: Failed to get process executable name. Check that the process is running.\n\nCaused by:\n"
            "    0: No such file or directory (os error 2)",
            NotFound,
            "gone",
        ),
        (
            "Error: Failed to get stack traces\n\nCaused by:\n    0: Failed to suspend process\n    1: unexpected "
            "waitpid result PtraceEvent(Pid(10997), SIGSTOP, 128) to 10997",
            NotPermitted,
            "stopped",
        ),
        (
            "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'",
            NotPermitted,
            "may not read",
        ),
        ("Error: Permission denied (os error 13)", NotPermitted, "may not read"),
        ("Error: Failed to find python version from target process", HostError, "not a Python process"),
        ("", HostError, "no message"),
        ("\n\nsomething new\nin two lines", HostError, "something new"),
        ("x" * 100_000, HostError, "py-spy failed"),
    ],
    ids=range(9),
)
def test_what_py_spy_means(stderr: str, kind: type[HostError], words: str) -> None:
    error = explain_failure(4242, stderr)
    assert type(error) is kind
    assert words in error.message
    assert "4242" in error.message
    assert len(error.message) < 400
    assert error.help


# --- dumps


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_dump_has_one_main_thread(name: str) -> None:
    with Bundle(packed(name)) as bundle:
        dumps = [bundle.read(e.path) for e in bundle.manifest.journal if e.op == "stack" and e.path]
    assert dumps
    for data in dumps:
        threads = parse_pyspy(data)
        assert sum(thread.is_main and thread.pid == thread.tid for thread in threads) == 1
        assert all(frame.file and frame.line for thread in threads for frame in thread.frames)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"{}",
        b'"text"',
        b"[1]",
        b"[null]",
        b"[[]]",
        b"[{}]",
        b'[{"frames": null}]',
        b'[{"frames": {}}]',
        b'[{"frames": [1]}]',
        b'[{"frames": [[]]}]',
        b'[{"frames": []}',
        b"\xff\xfe[",
        b"\x80\x04}q\x00.",
        b"[" * 200_000,
        b'[{"frames": [{"line": 1' + b"0" * 10_000 + b"}]}]",
        b"Process 42: python train.py\nThread 42 (idle)",
    ],
    ids=range(18),
)
def test_what_is_no_dump_is_refused_in_a_line(data: bytes) -> None:
    with pytest.raises(UnreadableInput, match="not a py-spy dump") as refused:
        parse_pyspy(data)
    assert len(refused.value.message) < 200
    assert "py-spy dump" in refused.value.help


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_dump_that_was_cut_off_is_refused(share: float) -> None:
    with Bundle(packed("lock-order")) as bundle:
        entry = next(e for e in bundle.manifest.journal if e.op == "stack")
        whole = bundle.read(entry.path or "").rstrip()
    with pytest.raises(UnreadableInput):
        parse_pyspy(whole[: int(len(whole) * share)])


@pytest.mark.slow
def test_a_dump_is_bounded() -> None:
    frame = {"name": "f" * 10_000, "filename": "/" + "d/" * 10_000, "line": 3}
    threads = [{"pid": 1, "os_thread_id": n, "thread_name": "t" * 10_000, "frames": [frame] * 1_500} for n in range(3)]
    found = parse_pyspy(json.dumps(threads).encode())
    assert {len(thread.frames) for thread in found} == {1_000}
    assert max(len(text) for text in (found[0].name, found[0].frames[0].file, found[0].frames[0].function)) == 500
    many = [{"pid": 1, "os_thread_id": n, "frames": []} for n in range(5_000)]
    assert len(parse_pyspy(json.dumps(many).encode())) == 2_000


def test_numbers_and_half_characters_fit_the_columns() -> None:
    frame = {"name": "half \ud800", "filename": "\udcff.py", "line": 10**30}
    (thread,) = parse_pyspy(dump([frame], pid=-1, os_thread_id=1 << 70, thread_name=17))
    assert (thread.pid, thread.tid, thread.name, thread.frames[0].line) == (0, 0, "17", 0)
    assert (thread.frames[0].function, thread.frames[0].file) == ("half ?", "?.py")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["pid", "os_thread_id", "thread_name", "frames", "name", "filename", "line", "active"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


@given(value=st.lists(json_values, max_size=4))
def test_any_json_is_read_or_refused(value: list[Any]) -> None:
    try:
        threads = parse_pyspy(json.dumps(value).encode())
    except UnreadableInput:
        return
    for thread in threads:
        assert 0 <= thread.tid < 1 << 63
        for frame in thread.frames:
            assert 0 <= frame.line < 1 << 31
            f"{frame.file}{frame.function}{thread.name}".encode()


@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(UnreadableInput):
        parse_pyspy(data)


# --- whose frame it is


@pytest.mark.parametrize(
    ("file", "user", "module"),
    [
        ("/home/u/project/train.py", True, "/home/u/project/train.py"),
        ("train.py", True, "train.py"),
        ("/home/u/lib/python/train.py", True, None),
        ("C:\\jobs\\train.py", True, None),
        ("/tmp/ipykernel_17/123.py", True, None),
        ("/home/u/project/train.pyx", True, None),
        ("/v/lib/python3.11/site-packages/torch/nn/modules/module.py", False, "torch/nn/modules/module.py"),
        ("/usr/lib/python3/dist-packages/torch/_ops.py", False, "torch/_ops.py"),
        ("C:\\v\\Lib\\site-packages\\torch\\_ops.py", False, "torch/_ops.py"),
        ("/usr/lib/python3.8/threading.py", False, "threading.py"),
        ("/usr/lib64/python3.12/concurrent/futures/thread.py", False, "concurrent/futures/thread.py"),
        ("/opt/conda/lib/python3.10/site-packages/torch/a/site-packages/b.py", False, "torch/a/site-packages/b.py"),
        ("<frozen importlib._bootstrap>", False, "<frozen importlib._bootstrap>"),
        ("<string>", False, None),
        ("<eval_with_key>.3", False, None),
        ("/tmp/torchinductor_u/ab/cab.py", False, None),
        ("", False, ""),
        ("/usr/lib/x86_64-linux-gnu/libc.so.6", False, None),
        ("libtorch_cpu.so", False, None),
        ("/usr/local/lib/libpython3.11.so.1.0", False, None),
        ("/usr/bin/python3.11", False, None),
        ("torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp", False, None),
        ("/home/u/kernels/fused.cu", False, None),
        ("[vdso]", False, None),
    ],
)  # fmt: skip
def test_whose_file_it_is(file: str, user: bool, module: str | None) -> None:
    assert is_user_file(file) is user
    if module is not None:
        assert module_path(file) == module


@given(file=st.text(max_size=80))
def test_any_file_name_belongs_to_somebody(file: str) -> None:
    assert is_user_file(file) in (True, False)
    assert len(module_path(file)) <= len(file)


def test_py_spy_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotFound, match="py-spy is not installed") as refused:
        LocalHost().stack(os.getpid())
    assert "pip install py-spy" in refused.value.help
