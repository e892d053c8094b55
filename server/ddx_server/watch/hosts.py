"""The ranks of a job on many hosts: each host watches its own ranks and reports them at every sample."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ddx_server.watch.ranks import RankRow
from ddx_tools.investigation.many_hosts.fan_out import command_line
from ddx_tools.investigation.many_hosts.listener import Listening
from ddx_tools.investigation.many_hosts.wire import note
from ddx_tools.sources.cluster.targets import Reach, folded

_KIND = b"ddx1 ranks "
_LONGEST_LINE = 1 << 20
_LONGEST_NOTE, _MOST_NOTES = 400, 8
_SILENT_S = 10.0
"""Seconds beyond the sampling interval after which a host counts as silent."""
_FIRST_WORD_S = 15.0
_NO_WORD = "no answer from its host"
_PAGE_S = 30.0


def line_of(step: int | None, rows: Sequence[RankRow], notes: Sequence[str] = (), *, tells_waits: bool) -> bytes:
    """Encode one host's report as a line for `ddx watch` on the machine that watches all hosts.

    `step` is the last printed step (None if unknown), `rows` the host's ranks, `notes` lines about NCCL's RAS.
    `tells_waits`: the ranks report the collective that they wait in.
    """
    seen = [[row.rank, row.pid, row.doing, row.age_s, row.rss_bytes, row.gpu_bytes] for row in rows]
    return note("ranks", step=step, tells_waits=tells_waits, rows=seen, notes=[line[:_LONGEST_NOTE] for line in notes])


class WatchedHosts:
    """The interface of `WatchedJob` for many hosts at once."""

    def __init__(self, reach: Reach, interval_s: float) -> None:
        words = ["watch", "--rows", "--interval", f"{interval_s:g}", *(("--job", reach.job) if reach.job else ())]
        self.rows: list[RankRow] = []
        self._reach = reach
        self._silent_s = interval_s + _SILENT_S
        self._began_s = time.monotonic()
        self._heard: dict[str, tuple[float, dict[str, Any]]] = {}
        self._listening = Listening(reach, command_line(reach, *words), self._hear)

    @property
    def step(self) -> int | None:
        """The last step printed on any host."""
        return max((said["step"] for _, said in self._heard.values() if said["step"] is not None), default=None)

    @property
    def tells_waits(self) -> bool:
        """Whether `ddx run` started the ranks, so that they report their collective."""
        return any(said["tells_waits"] for _, said in self._heard.values())

    @property
    def is_over(self) -> bool:
        """Whether no host is left that could report."""
        return len(self._listening.ended) == len(self._reach.hosts)

    @property
    def notes(self) -> list[str]:
        """What hosts say about NCCL's RAS, and the hosts that have reported nothing, with the reason:
        `node[3-4]: Connection refused`."""
        reasons: dict[str, list[str]] = {}
        for host in self._reach.hosts:
            if host not in self._heard and (why := self._listening.ended.get(host) or self._late()):
                reasons.setdefault(why[:160], []).append(host)
        told = dict.fromkeys(line for _, report in list(self._heard.values()) for line in report["notes"])
        return [*list(told)[:_MOST_NOTES], *(f"{folded(hosts)}: {why}" for why, hosts in reasons.items())]

    def look(self) -> None:
        """Process the reports since the last call; ranks of a host that fell silent are marked so."""
        now = time.monotonic()
        rows = []
        for heard_s, said in list(self._heard.values()):
            is_silent = now - heard_s >= self._silent_s
            rows += [replace(row, doing=_NO_WORD) if is_silent and row.doing != "gone" else row for row in said["rows"]]
        self.rows = sorted(rows, key=lambda row: (row.rank, row.host))

    def page(self, rank: int) -> list[str]:
        """The output of `ddx show rank N` on the rank's host."""
        row = next((row for row in self.rows if row.rank == rank), None)
        if row is None:
            return [f"no host has reported rank {rank}"]
        lines: list[bytes] = []
        alone = replace(self._reach, hosts=(row.host,))
        words = command_line(alone, "show", "rank", str(rank), "--from", str(row.pid))
        listening = Listening(alone, words, lambda _, line: lines.append(line))
        over = listening.wait(_PAGE_S)
        listening.close()
        if lines:
            return [line.decode("utf-8", "replace") for line in lines]
        return [f"{row.host}: {listening.ended.get(row.host) if over else f'no answer in {_PAGE_S:.0f} s'}"]

    def close(self) -> None:
        """Stop watching, here and on the hosts."""
        self._listening.close()

    def _late(self) -> str:
        waited_s = time.monotonic() - self._began_s
        return f"no answer in {waited_s:.0f} s" if waited_s >= _FIRST_WORD_S else ""

    def _hear(self, host: str, line: bytes) -> None:
        if not line.startswith(_KIND) or len(line) > _LONGEST_LINE:
            return
        try:
            said = json.loads(line.removeprefix(_KIND))
            said = {
                "step": None if said["step"] is None else int(said["step"]),
                "tells_waits": bool(said["tells_waits"]),
                "rows": [_row(host, *row) for row in said["rows"]],
                "notes": [str(line)[:_LONGEST_NOTE] for line in said.get("notes", ())[:_MOST_NOTES]],
            }
        except (ValueError, TypeError, KeyError):
            return
        self._heard[host] = time.monotonic(), said


def _row(host: str, rank: object, pid: object, doing: object, age: object, rss: object, gpu: object) -> RankRow:
    """Check a row from another host. Raises ValueError or TypeError."""
    numbers = [None if number is None else float(str(number)) for number in (age, rss, gpu)]
    sizes = [None if number is None else int(number) for number in numbers[1:]]
    return RankRow(
        int(str(rank)), int(str(pid)), doing=str(doing)[:200], age_s=numbers[0], rss_bytes=sizes[0],
        gpu_bytes=sizes[1], host=host,
    )  # fmt: skip
