from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from ddx_server.doctor import DoctorReport, State, examine, render
from ddx_tools.model.errors import HostError, NotFound, NotPermitted
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.hosts.local import LocalHost

STATUS = "Name:\tpython\nCapEff:\t{:016x}\n"
PTRACE = 1 << 19


def rank(number: int, **fields: Any) -> dict[str, Any]:
    """A process row of a two-rank job in a virtual environment."""
    env = {"RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return {
        "pid": 20 + number,
        "ppid": 1,
        "user": "alice",
        "name": "python",
        "cmdline": ["/srv/venv/bin/python", "train.py"],
        "exe": "/usr/bin/python3.11",
        "state": "S",
        "env": env | fields.pop("env", {}),
        "readable": True,
    } | fields


class Machine(Host):
    """Answers as a machine with these files, paths and processes would."""

    def __init__(
        self,
        files: dict[str, str | HostError] | None = None,
        paths: list[str] | None = None,
        processes: list[dict[str, Any]] | None = None,
        stack: HostError | None = None,
    ) -> None:
        self.name = "node-a"
        self.files: dict[str, str | HostError] = {
            "/proc/1/stat": "1 (init) S 0",
            "/proc/self/status": STATUS.format(PTRACE),
            "/proc/self/uid_map": "0 0 4294967295",
            **(files or {}),
        }
        self.paths = paths or []
        self.table = processes or []
        self.stack_error = stack

    def pause(self, seconds: float) -> None:
        raise AssertionError("a doctor does not wait")

    def answer(self, call: HostCall) -> Reply:
        if call.op == "read":
            found = self.files.get(call.key, NotFound(f"{call.key}: no such file"))
            return error_reply(found) if isinstance(found, HostError) else Reply(found.encode())
        if call.op == "glob":
            return Reply(json.dumps(self._glob(call.key)).encode())
        if call.op == "processes":
            return Reply(json.dumps({"processes": self.table}).encode())
        if call.op == "stack":
            return error_reply(self.stack_error) if self.stack_error else Reply(b"[]")
        return Reply(b"py-spy 0.4.1")

    def _glob(self, pattern: str) -> list[str]:
        stem = pattern.partition("*")[0]
        return [path for path in self.paths if path.startswith(stem) and (path == pattern or "*" in pattern)]


def check(host: Host, name: str) -> tuple[State, str, str]:
    found = next(check for check in examine(host).checks if check.name == name)
    return found.state, found.detail, found.remedy


@pytest.mark.needs("linux")
@pytest.mark.parametrize(
    ("scope", "capabilities", "state"),
    [
        ("0", 0, State.OK),
        ("1", PTRACE, State.OK),
        ("1", 0, State.GAP),
        ("2", 0, State.GAP),
        ("2", PTRACE, State.OK),
        ("3", PTRACE, State.GAP),
    ],
)
def test_the_ptrace_scope_is_a_gap_where_it_keeps_ddx_out(scope: str, capabilities: int, state: State) -> None:
    files: dict[str, str | HostError] = {
        "/proc/sys/kernel/yama/ptrace_scope": f"{scope}\n",
        "/proc/self/status": STATUS.format(capabilities),
    }
    found, _, remedy = check(Machine(files), "ptrace scope")
    assert found is state
    assert bool(remedy) == (state is State.GAP)


@pytest.mark.needs("linux")
def test_a_kernel_without_yama_restricts_nothing() -> None:
    assert check(Machine(), "ptrace scope")[0] is State.OK


@pytest.mark.needs("linux")
def test_hidden_processes_are_a_gap() -> None:
    state, _, remedy = check(Machine({"/proc/1/stat": NotFound("/proc/1/stat: no such file")}), "/proc")
    assert state is State.GAP
    assert "sudo ddx why" in remedy


def test_stacks_that_cannot_be_read_come_with_the_help_of_the_error() -> None:
    state, detail, remedy = check(Machine(stack=NotPermitted("no stack: not allowed", "Do this.")), "stacks")
    assert (state, detail, remedy) == (State.GAP, "no stack: not allowed", "Do this.")


@pytest.mark.needs("linux")
def test_a_container_is_recognised() -> None:
    assert "/.dockerenv" in check(Machine(paths=["/.dockerenv"]), "container")[1]


VENV = "/srv/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("version", "env", "state"),
    [
        ("2.13.0+cpu", {}, State.OK),
        ("2.11.0", {}, State.OK),
        ("2.10.1", {}, State.GAP),
        ("2.10.1", {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, State.OK),
        ("2.13.0", {"TORCH_FR_BUFFER_SIZE": "0"}, State.GAP),
    ],
)
def test_the_flight_recorder_is_on_by_variable_or_by_version(version: str, env: dict[str, str], state: State) -> None:
    host = Machine(paths=[f"{VENV}/torch-{version}.dist-info"], processes=[rank(0, env=env), rank(1, env=env)])
    assert check(host, "torch of env:20")[1] == version
    found, _, remedy = check(host, "flight recorder of env:20")
    assert found is state
    assert ("ddx run -- " in remedy) == (state is State.GAP)


def test_a_version_of_torch_that_cannot_be_told_leaves_the_recorder_unknown() -> None:
    host = Machine(processes=[rank(0), rank(1)])
    assert check(host, "torch of env:20")[0] is State.UNKNOWN
    assert check(host, "flight recorder of env:20")[0] is State.UNKNOWN


@pytest.mark.parametrize(("sockets", "state"), [(2, State.OK), (1, State.GAP)])
def test_rank_agents_are_counted_in_the_run_directory(sockets: int, state: State) -> None:
    env = {"DDX_RUN_DIR": "/tmp/run"}
    paths = [f"/tmp/run/ranks/rank-{r}.{20 + r}.sock" for r in range(sockets)]
    host = Machine(paths=paths, processes=[rank(0, env=env), rank(1, env=env)])
    found, detail, _ = check(host, "rank agent of env:20")
    assert found is state
    assert f"{sockets} of 2" in detail


def test_a_job_without_agent_is_told_how_to_get_one_next_time() -> None:
    assert "ddx run -- " in check(Machine(processes=[rank(0), rank(1)]), "rank agent of env:20")[2]


def test_a_job_of_another_user_names_the_owner_and_the_command() -> None:
    launcher = {"pid": 10, "ppid": 1, "name": "python", "cmdline": ["/usr/bin/python", "/usr/bin/torchrun", "train.py"]}
    hidden = rank(1) | {"env": None, "readable": False, "exe": None, "ppid": 10}
    state, detail, remedy = check(Machine(processes=[launcher, hidden]), "job torchrun:10")
    assert state is State.GAP
    assert "alice" in detail
    assert remedy == "sudo ddx why 10"


def test_without_a_job_the_doctor_says_so() -> None:
    assert check(Machine(), "jobs")[0] is State.OK


def test_the_report_shows_every_check_and_each_remedy_below_its_gap() -> None:
    report = examine(Machine(processes=[rank(0), rank(1)]))
    out = io.StringIO()
    render(report, Console(file=out, width=200))
    lines = out.getvalue().splitlines()
    assert report.gaps
    for gap in report.gaps:
        at = next(n for n, line in enumerate(lines) if gap.name in line)
        assert lines[at].startswith("✗")
        assert gap.remedy in lines[at + 1]
    assert DoctorReport.model_validate_json(report.model_dump_json()) == report


def test_markup_and_escapes_of_a_job_do_not_reach_the_terminal() -> None:
    env = {"DDX_RUN_DIR": "/tmp/[red]\x1b[2J"}
    out = io.StringIO()
    render(examine(Machine(processes=[rank(0, env=env), rank(1, env=env)])), Console(file=out, width=200))
    assert "\x1b" not in out.getvalue()
    assert "[red]" in out.getvalue()


@pytest.mark.needs("ptrace")
def test_this_machine_can_be_examined() -> None:
    checks = {check.name: check.state for check in examine(LocalHost()).checks}
    assert checks["py-spy"] is State.OK
    assert checks["stacks"] is State.OK
