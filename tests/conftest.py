"""What all tests share: what they need of the machine, who has it alone, and that they leave no process behind."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

IN_CI = bool(os.environ.get("DDX_CI"))
LONG = bool(os.environ.get("DDX_LONG"))

# Children inherit it, and keep it when their parent dies: so orphans are found, too.
_MARK = "DDX_TESTED_BY"

settings.register_profile("ddx", deadline=None, derandomize=IN_CI, max_examples=20)
settings.register_profile("long", settings.get_profile("ddx"), max_examples=500)
settings.load_profile("long" if LONG else "ddx")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than processors, as many tests wait for programs that they started; unit tests start none."""
    waiting = 0 if config.getoption("markexpr") == "unit" else 1
    return (os.cpu_count() or 1) + waiting


_UNIT = Path(__file__).parent / "tools"
_TAKES_LONG = ("slow", "e2e", "alone", "long", "needs")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put real jobs last, as what is quick speaks first; in several processes, first, as what is quick fills the end.

    Tests that need the machine for themselves come behind all others. What `make check` runs is marked `unit`.
    """
    for item in items:
        if item.path.is_relative_to(_UNIT) and not any(map(item.get_closest_marker, _TAKES_LONG)):
            item.add_marker("unit")
    several = hasattr(config, "workerinput")

    def place(item: pytest.Item) -> tuple[bool, bool]:
        return item.get_closest_marker("alone") is not None, (item.get_closest_marker("e2e") is None) == several

    items.sort(key=place)


class _Turns:
    """Any number of ordinary tests at a time, or one that is `alone`, over all processes of a run.

    Two files of the checkout are locked with flock, which ends with the process that holds it: the gate, shared by
    ordinary tests, and the turnstile before it, which a waiting test keeps closed, so that it waits only for what has
    begun already.
    """

    def __init__(self) -> None:
        here = Path(__file__)
        self._gate, self._turnstile = here.open("rb"), here.with_name("test_repository.py").open("rb")
        self._alone = False

    def take(self, *, alone: bool) -> None:
        if self._alone:  # kept since the test before
            return
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        fcntl.flock(self._turnstile, kind)
        fcntl.flock(self._gate, kind)
        fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        self._alone = alone

    def give(self, *, next_alone: bool) -> None:
        if not (self._alone and next_alone):
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            self._alone = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell which incidents are judged better than the table says."""
    passed = terminalreporter.getreports("passed")
    won = [str(line) for report in passed for name, line in report.user_properties if name == "won"]
    if won:
        terminalreporter.section("incidents that are judged better: make accept-incidents")
        terminalreporter.write_line("\n".join(dict.fromkeys(won)))


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be Ctrl-C, and tests in several processes take turns.

    What a shell starts in the background ignores Ctrl-C, and so does all that it starts: programs that are to end
    by it would be waited for in vain.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("COLUMNS", None)  # of the terminal on which the tests run
    if hasattr(config, "workerinput"):
        config.stash[_TURNS] = _Turns()


_TURNS = pytest.StashKey[_Turns]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Hold the gate for as long as a test runs, its fixtures included."""
    turns = item.config.stash.get(_TURNS, None)
    if turns is None:
        return (yield)
    turns.take(alone=item.get_closest_marker("alone") is not None)
    try:
        return (yield)
    finally:
        turns.give(next_alone=nextitem is not None and nextitem.get_closest_marker("alone") is not None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that needs what this machine lacks; in CI nothing may be lacking."""
    for marker in item.iter_markers("needs"):
        for need in marker.args:
            if reason := _lacks(need):
                if IN_CI:
                    pytest.fail(f"CI has to provide it: {reason}", pytrace=False)
                pytest.skip(reason)


@cache
def _lacks(need: str) -> str | None:
    """Why the machine cannot do this: `linux`, `root`, `ptrace`, `torch`, `atheris`, a framework, or a program."""
    if need == "linux":
        return None if sys.platform == "linux" else "needs Linux"
    if need == "root":
        return None if os.geteuid() == 0 else "needs root"
    if need in ("torch", "tabulate"):
        return None if importlib.util.find_spec(need) else f"needs {need} (pip install -e '.[lab]')"
    if need in ("accelerate", "transformers", "lightning", "deepspeed"):
        return None if importlib.util.find_spec(need) else f"needs {need} (pip install -e '.[lab-frameworks]')"
    if need == "atheris":
        return None if importlib.util.find_spec("atheris") else "needs atheris (pip install -e '.[dev]')"
    if need == "ptrace":
        return None if _may_dump_stacks() else "needs the right to read other processes' stacks (ptrace)"
    return None if shutil.which(need) else f"needs {need} on PATH"


def _may_dump_stacks() -> bool:
    """Whether py-spy reads a process beside it; nothing but trying tells of containers, Yama and SELinux."""
    pyspy = Path(sys.executable).with_name("py-spy")
    program = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as beside:
        assert beside.stdout is not None
        beside.stdout.readline()
        dump = subprocess.run([pyspy, "dump", "--pid", str(beside.pid)], capture_output=True, check=False)
        beside.kill()
    return dump.returncode == 0


@pytest.fixture(scope="session")
def npm_program() -> Callable[[str, str], Path]:
    """A program of an npm package, installed once: `npm_program("@anthropic-ai/claude-code@2.1.329", "claude")`.

    It stays in `$DDX_TEST_CACHE` (`~/.cache/ddx-tests`) for the next run. Mark such tests `needs("npm")`.
    """
    return _npm_program


@cache
def _npm_program(package: str, program: str) -> Path:
    kept = Path(os.environ.get("DDX_TEST_CACHE") or Path.home() / ".cache/ddx-tests")
    prefix = kept / re.sub(r"[^\w.]+", "-", package).strip("-")
    prefix.mkdir(parents=True, exist_ok=True)
    found = prefix / "node_modules/.bin" / program
    with (prefix / ".lock").open("w") as lock:  # closing it lets go
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            argv = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(prefix), package]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                give_up = pytest.fail if IN_CI else pytest.skip
                give_up(f"npm cannot install {package}: {done.stderr[-500:]}")
    return found


@pytest.fixture(autouse=True)
def no_children_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test that leaves a child process behind."""
    before = _children()
    yield
    if new := _children() - before:
        _expect_end([psutil.Process(pid) for pid in new if psutil.pid_exists(pid)], request.node.nodeid)


def _children() -> set[int]:
    """Pids of this process's children, from the kernel's own lists where it keeps them: psutil reads all of /proc."""
    try:
        pids = [(task / "children").read_text() for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return {child.pid for child in psutil.Process().children()}
    return {int(pid) for pid in " ".join(pids).split()}


@pytest.fixture(scope="session", autouse=True)
def no_orphans_left() -> Iterator[None]:
    """Fail the run that leaves a process behind, also one whose parent is gone."""
    mark = os.environ[_MARK] = str(os.getpid())
    yield
    del os.environ[_MARK]
    marked = [process for process in psutil.process_iter() if _mark_of(process) == mark]
    _expect_end([process for process in marked if process.pid != os.getpid()], "this run")


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(_MARK)
    except (psutil.Error, OSError):
        return None


def _expect_end(processes: list[psutil.Process], whose: str) -> None:
    """After a moment of grace kill what is left, so that it disturbs no other test, and fail."""
    commands = {process: _command(process) for process in processes}
    ours = [p for p, command in commands.items() if not _is_kept(p, command)]
    _, left = psutil.wait_procs(ours, timeout=3)
    for process in left:
        process.kill()
    psutil.wait_procs(left, timeout=3)
    if left:
        names = "\n".join(f"{process.pid}: {commands[process][:200]}" for process in left)
        pytest.fail(f"{whose} left processes behind:\n{names}", pytrace=False)


def _is_kept(process: psutil.Process, command: str) -> bool:
    """multiprocessing keeps its tracker for as long as the interpreter lives, and this program one that decodes."""
    if "ddx_tools.sources.worker_process" in command:
        return process in psutil.Process().children()
    return "multiprocessing.resource_tracker" in command


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
