"""The client believes nothing that it did not check; real sockets, and an agent in a real process."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddx_tools.model.errors import HostError, NotFound, TimedOut
from ddx_tools.payloads import SITE_DIRECTORY
from ddx_tools.sources.hosts.rank_agent import (
    AgentAddress,
    AgentGarbled,
    AgentRefused,
    ask,
    list_agents,
    parse_answer,
    record_parts,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir(mode=0o700)
    return tmp_path


@pytest.fixture
def rank(run_dir: Path) -> Iterator[AgentAddress]:
    """A Python process that is rank 2 of 4, with an agent and without torch."""
    environ = {**os.environ, "PYTHONPATH": str(SITE_DIRECTORY), "DDX_RUN_DIR": str(run_dir)}
    process = subprocess.Popen(
        [sys.executable, "-c", "print('up', flush=True); input()"],
        env={**environ, "RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield AgentAddress(str(run_dir), 2, process.pid)
        process.send_signal(signal.SIGCONT)
        process.kill()


def ask_rank(
    address: AgentAddress, request: dict[str, object], timeout_s: float = 20
) -> tuple[dict[str, object], bytes]:
    return parse_answer(ask(address.run_dir, address.rank, address.pid, request, timeout_s))


def test_a_run_directory_lists_its_agents(rank: AgentAddress) -> None:
    assert list_agents(rank.run_dir) == [rank]


def test_a_rank_answers_before_torch_is_imported(rank: AgentAddress) -> None:
    header, payload = ask_rank(rank, {"op": "status"})
    assert {name: header[name] for name in ("rank", "world_size", "local_rank", "initialized", "torch", "pid")} == {
        "rank": 2,
        "world_size": 4,
        "local_rank": 0,
        "initialized": False,
        "torch": None,
        "pid": rank.pid,
    }
    assert payload == b""


def test_stacks_name_the_line_where_the_main_thread_is(rank: AgentAddress) -> None:
    header, text = ask_rank(rank, {"op": "stacks"})
    assert b'File "<string>", line 1 in <module>' in text
    assert {"MainThread", "ddx-rank-agent"} <= {thread["name"] for thread in header["threads"]}  # type: ignore[attr-defined]


def test_memory_is_told_in_bytes(rank: AgentAddress) -> None:
    header, _ = ask_rank(rank, {"op": "memory"})
    assert 1 << 20 < int(str(header["rss_bytes"])) <= int(str(header["peak_rss_bytes"])) < 1 << 32
    assert header["cuda"] == {}


def test_a_profile_without_torch_is_refused_and_leaves_nothing(rank: AgentAddress) -> None:
    with pytest.raises(AgentRefused):
        ask_rank(rank, {"op": "profile", "seconds": 0.1})
    assert not list(Path(rank.run_dir, "ranks").glob("*.trace.json*"))


def test_records_without_torch_say_why_there_are_none(rank: AgentAddress) -> None:
    header, payload = ask_rank(rank, {"op": "records"})
    assert (header["parts"], payload) == ([], b"")
    assert "torch is not imported" in str(header["errors"])


@pytest.mark.parametrize("request_", [{"op": "nope"}, {}, {"op": ["status"]}, {"op": "save", "label": "../x"}])
def test_what_an_agent_does_not_understand_it_refuses(rank: AgentAddress, request_: dict[str, object]) -> None:
    with pytest.raises(AgentRefused):
        ask_rank(rank, request_)
    assert ask_rank(rank, {"op": "status"})[0]["ok"] is True


@pytest.mark.parametrize("noise", [b"", b"\x00" * 5000, b"[" * 3000 + b"\n", b"\xff\xfe\n", b"17\n"])
def test_an_agent_survives_a_client_that_talks_nonsense(rank: AgentAddress, noise: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{rank.run_dir}/ranks/rank-2.{rank.pid}.sock")
        client.sendall(noise)
    assert ask_rank(rank, {"op": "status"})[0]["rank"] == 2


def test_a_client_that_says_nothing_does_not_keep_the_agent_from_the_next(rank: AgentAddress) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(f"{rank.run_dir}/ranks/rank-2.{rank.pid}.sock")
        assert ask_rank(rank, {"op": "status"})[0]["rank"] == 2


def test_a_stopped_rank_costs_its_deadline_and_no_more(rank: AgentAddress) -> None:
    os.kill(rank.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, rank.pid, os.WSTOPPED | os.WNOWAIT)  # on another processor it runs on for a moment
    with pytest.raises(TimedOut, match=r"rank 2 .* no answer within 0\.2 s"):
        ask_rank(rank, {"op": "status"}, timeout_s=0.2)


def test_an_ended_rank_is_not_found(rank: AgentAddress) -> None:
    os.kill(rank.pid, signal.SIGKILL)
    os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(NotFound, match="no agent answers"):
        ask_rank(rank, {"op": "status"})


def test_a_directory_that_is_no_run_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not a run directory"):
        list_agents(str(tmp_path))


def test_files_that_only_look_like_sockets_are_no_agents(run_dir: Path) -> None:
    (run_dir / "ranks" / "rank-0.1.sock").write_text("")
    (run_dir / "ranks" / "rank-x.1.sock").symlink_to("/dev/null")
    assert list_agents(str(run_dir)) == []


def serve_once(run_dir: Path, answer: bytes) -> threading.Thread:
    """A hostile agent: whatever it is asked, it sends `answer` and closes."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(run_dir / "ranks" / "rank-0.1.sock"))
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with server, connection:
            connection.recv(4096)
            try:
                connection.sendall(answer)
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no newline",
        b"not json\n",
        b"[]\n",
        b"[" * 100_000 + b"\n",
        b'{"ok": true, "bytes": 10}\nshort',
        b'{"ok": true, "bytes": 1}\nlong',
        b'{"ok": true, "bytes": -1}\n',
        b'{"ok": true, "bytes": true}\nx',
        b'{"ok": true, "bytes": 1e400}\n',
        b'{"ok": true, "bytes": ' + b"9" * 5000 + b"}\n",
        b'{"ok": true}\n',
    ],
)
def test_a_garbled_answer_is_an_error_that_says_so(run_dir: Path, answer: bytes) -> None:
    thread = serve_once(run_dir, answer)
    with pytest.raises(AgentGarbled):
        ask(str(run_dir), 0, 1, {"op": "status"}, 20)
    thread.join()


def test_an_endless_answer_is_cut(run_dir: Path) -> None:
    thread = serve_once(run_dir, b'{"ok": true, "bytes": 5}\n' + b"x" * (12 << 20))
    with pytest.raises(AgentGarbled, match="sent more than"):
        ask(str(run_dir), 0, 1, {"op": "status"}, 20, max_bytes=1000)
    thread.join()


@given(st.binary(max_size=300))
def test_no_bytes_make_the_parser_do_anything_but_answer_or_refuse(answer: bytes) -> None:
    try:
        header, payload = parse_answer(answer)
    except HostError:
        return
    assert header["bytes"] == len(payload)


def test_parts_divide_the_payload() -> None:
    header = {"parts": [{"part": "fr", "bytes": 2}, {"part": "nccl", "bytes": 3}]}
    assert record_parts(header, b"aabbb") == {"fr": b"aa", "nccl": b"bbb"}


@pytest.mark.parametrize("parts", [[{"part": "fr", "bytes": 6}], [{"part": "fr", "bytes": -1}], [7], [{}]])
def test_parts_that_do_not_add_up_are_an_error(parts: list[object]) -> None:
    with pytest.raises(AgentGarbled):
        record_parts(json.loads(json.dumps({"parts": parts})), b"aabbb")
