"""Queries the agent that `ddx run` puts into each rank of a job (`ddx_tools/payloads/rank_agent.py`).

The socket is in a directory that only the job's user can enter, but its answers come from the job's own process: every
length is bounded, every answer is checked before use.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ddx_tools.model.errors import HostError, NotFound, NotPermitted, TimedOut

_SOCKET_NAME = re.compile(r"rank-(\d{1,9})\.(\d{1,9})\.sock")
_MOST_ENTRIES = 65536
_MOST_HEADER_BYTES = 8 << 20
MOST_PAYLOAD_BYTES = 256 << 20
"""A flight recorder of 20,000 entries with stacks is about 100 MB."""


class AgentGarbled(HostError):
    """The data from the socket is not a rank agent's answer."""


class AgentRefused(HostError):
    """The agent answered with an error."""


@dataclass(frozen=True, order=True)
class AgentAddress:
    """The address of one rank's agent, from its socket: `<run_dir>/ranks/rank-<rank>.<pid>.sock`."""

    run_dir: str
    rank: int
    pid: int
    """The pid in the job's namespace."""


def list_agents(run_dir: str) -> list[AgentAddress]:
    """The agents whose sockets are in a run directory, by rank; some may have died since.

    Raises NotFound if it is not a run directory, NotPermitted if it belongs to another user.
    """
    directory = Path(run_dir, "ranks")
    try:
        with os.scandir(directory) as entries:
            found = [_address(run_dir, entry) for entry in islice(entries, _MOST_ENTRIES)]
    except PermissionError as error:
        raise NotPermitted(
            f"{directory}: only the job's user may enter", "Run ddx as that user, or with sudo."
        ) from error
    except OSError as error:
        raise NotFound(
            f"{run_dir}: not a run directory ({error.strerror})",
            "Name the directory that `ddx run` created: ./ddx-runs/<time>-<pid>.",
        ) from error
    return sorted(address for address in found if address)


def _address(run_dir: str, entry: os.DirEntry[str]) -> AgentAddress | None:
    match = _SOCKET_NAME.fullmatch(entry.name)
    if match is None or not stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
        return None
    return AgentAddress(run_dir, int(match[1]), int(match[2]))


def ask(
    run_dir: str,
    rank: int,
    pid: int,
    request: Mapping[str, Any],
    timeout_s: float,
    max_bytes: int = MOST_PAYLOAD_BYTES,
) -> bytes:
    """Ask one rank's agent; return header line and payload, checked by `parse_answer`.

    Raises NotFound (no such rank, or it has exited), NotPermitted, TimedOut (a stopped process, or native code that
    holds the interpreter lock), AgentGarbled, AgentRefused.
    """
    deadline = time.monotonic() + timeout_s
    who = f"rank {rank} (pid {pid})"
    try:
        with _connected(AgentAddress(run_dir, rank, pid), timeout_s) as connection:
            connection.sendall(json.dumps(dict(request)).encode() + b"\n")
            answer = _read_to_end(connection, deadline, _MOST_HEADER_BYTES + max_bytes)
    except TimeoutError as error:
        raise TimedOut(
            f"{who}: its agent gave no answer within {timeout_s:g} s",
            "The process is stopped, or native code holds its interpreter lock. "
            f"To read its stack without the agent: ddx stacks {pid}",
        ) from error
    except PermissionError as error:
        raise NotPermitted(f"{who}: its agent answers only its own user", "Run ddx as the user of the job.") from error
    except OSError as error:
        raise NotFound(
            f"{who}: no agent answers in {run_dir} ({error.strerror})",
            f"The process has ended, or it was not started by `ddx run`. To see what it left behind: ddx why {run_dir}",
        ) from error
    parse_answer(answer, max_bytes)
    return answer


def parse_answer(answer: bytes, max_bytes: int = MOST_PAYLOAD_BYTES) -> tuple[dict[str, Any], bytes]:
    """Split an answer into header and payload.

    Raises AgentGarbled if it is incomplete or not an answer, AgentRefused if the agent reported an error.
    """
    line, newline, payload = answer.partition(b"\n")
    if not newline or len(line) > _MOST_HEADER_BYTES:
        raise AgentGarbled("a rank agent's answer has no header line", "")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise AgentGarbled("the header of a rank agent's answer is not JSON", "") from error
    if not isinstance(header, dict):
        raise AgentGarbled("the header of a rank agent's answer is not an object", "")
    announced = header.get("bytes")
    if type(announced) is not int or not 0 <= announced <= max_bytes or announced != len(payload):
        raise AgentGarbled(f"a rank agent announced {announced!r:.40} bytes but sent {len(payload)}", "")
    if header.get("ok") is not True:
        raise AgentRefused(f"the rank agent could not answer: {header.get('error')!s:.500}", "")
    return header, payload


def record_parts(header: Mapping[str, Any], payload: bytes) -> dict[str, bytes]:
    """The flight recorder pickles of a `records` answer, by part (`fr`, `nccl`)."""
    parts: dict[str, bytes] = {}
    offset = 0
    for entry in header.get("parts") or []:
        size = entry.get("bytes") if isinstance(entry, dict) else None
        if type(size) is not int or not 0 <= size <= len(payload) - offset:
            raise AgentGarbled("the parts of a rank agent's records do not add up", "")
        parts[str(entry.get("part"))[:40]] = payload[offset : offset + size]
        offset += size
    return parts


@contextmanager
def _connected(address: AgentAddress, timeout_s: float) -> Iterator[socket.socket]:
    # A unix socket's path is limited to 107 bytes; through the directory's descriptor, any depth works.
    directory = os.open(Path(address.run_dir, "ranks"), os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(f"/proc/self/fd/{directory}/rank-{address.rank}.{address.pid}.sock")
            yield connection
    finally:
        os.close(directory)


def _read_to_end(connection: socket.socket, deadline: float, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while size <= limit:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(1 << 20)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        size += len(chunk)
    raise AgentGarbled(f"a rank agent sent more than {limit} bytes", "")
