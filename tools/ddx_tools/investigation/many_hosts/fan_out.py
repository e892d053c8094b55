"""Asks many hosts at once with ClusterShell; for each host that did not answer, says why and what to do."""

from __future__ import annotations

import re
import resource
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddx_tools.investigation.many_hosts.wire import Inbox
from ddx_tools.model.errors import UsageError
from ddx_tools.sources.asked_host import AskedHost
from ddx_tools.sources.cluster.targets import Reach

_STDERR_BYTES = 2_000
_MOST_AT_ONCE = 1_280
_FILES_A_PROGRAM, _FILES_OF_OURS = 3, 100
"""Open files per program (ends of pipes), and other open files."""


@dataclass(frozen=True)
class FanOutLimits:
    """Limits of one fan-out. A host that does not answer in time is left out, and the others are judged."""

    host_s: float = 25.0
    total_s: float = 60.0
    connect_s: int = 5
    at_once: int = _MOST_AT_ONCE
    """Programs that run here at the same time; further hosts are captured later."""
    host_bytes: int = 8 << 20
    """Maximum size of a host's packed answer."""


@dataclass
class HostReplies:
    """The replies of one host, as seen from here."""

    name: str
    inbox: Inbox
    began_s: float | None = None
    ended_s: float | None = None
    hello_s: float = 0.0
    end_s: float = 0.0
    """When the `hello` and `end` lines arrived, by this machine's clock."""
    rc: int | None = None
    said: bytearray = field(default_factory=bytearray)

    def take(self, stream: str, line: bytes) -> None:
        """Process one line that the host's command printed to the given stream.

        Lines on `stderr` are kept for error messages, up to a limit; all others are parts of its answer.
        """
        if stream == "stderr":
            self.said += line[: _STDERR_BYTES - len(self.said)] + b"\n"
            return
        self.inbox.take(line)
        if self.inbox.hello and not self.hello_s:
            self.hello_s = time.time()
        if self.inbox.end and not self.end_s:
            self.end_s = time.time()

    def judged(self, limits: FanOutLimits) -> AskedHost:
        """The outcome for this host: whether it answered, or why not."""
        inbox, hello, end = self.inbox, self.inbox.hello or {}, self.inbox.end or {}
        state, reason, remedy = ("answered", "", "") if end and not inbox.garbled else self._failure(limits)
        if end.get("error"):
            state, reason, remedy = "in_part", str(end["error"])[:500], ""
        low, high = self._clock()
        return AskedHost(
            target=self.name,
            host=str(hello["host"])[:253] if "host" in hello else None,
            state=state,
            reason=reason,
            remedy=remedy,
            jobs=end["jobs"] if isinstance(end.get("jobs"), int) else None,
            clock_low_s=low,
            clock_high_s=high,
            seconds=round(self.ended_s - self.began_s, 2) if self.ended_s and self.began_s else None,
            size_bytes=inbox.size_bytes,
        )

    def _clock(self) -> tuple[float | None, float | None]:
        """How far the host's clock is ahead of ours, at least and at most: its lines took time to arrive."""
        if not self.inbox.hello or not self.began_s:
            return None, None
        first = float(self.inbox.hello["clock_s"])
        lows = [first - self.hello_s]
        if self.inbox.end:
            lows.append(float(self.inbox.end["clock_s"]) - self.end_s)
        return round(max(lows), 3), round(first - self.began_s, 3)

    def _failure(self, limits: FanOutLimits) -> tuple[Any, str, str]:
        stderr = self.said.decode("utf-8", "replace")
        if found := re.search(r"gateway \S+ does not answer[^\n]*", stderr):
            # The host's own answer is unknown.
            return "in_part" if self.inbox.rows else "not_asked", found[0][:300], _GATEWAY
        if self.began_s is None:
            return "not_asked", f"the {limits.total_s:.0f} s for all hosts had passed", "Ask again with --deadline."
        if self.inbox.hello is None:
            for pattern, state, remedy in _REASONS:
                if found := re.search(pattern, stderr):
                    return state, found[0].strip()[:300], remedy
        if self.inbox.end or (self.inbox.hello is None and (self.inbox.garbled or self.rc == 0)):
            noise = self.inbox.noise.decode("utf-8", "replace")
            return "garbled", f"its output is not an answer: {noise!r}", _BY_HAND
        if self.inbox.hello is None and self.rc is None:
            return "silent", f"no answer in {self.seconds_here:.0f} s", _IS_IT_THERE
        state = "in_part" if self.inbox.rows else "silent"
        if self.rc is None or self.rc in (124, 137):
            return state, f"it began to answer but did not finish in {self.seconds_here:.0f} s", _HANGS_THERE
        words = " ".join(stderr.split())[:300] or "nothing"
        return state, f"it exited with {self.rc} and printed: {words}", _BY_HAND

    @property
    def seconds_here(self) -> float:
        """How many seconds we waited for this host."""
        return (self.ended_s or time.time()) - (self.began_s or time.time())


_IS_IT_THERE = "Check whether the host is up: its console, `sinfo -R`, `kubectl get nodes`."
_HANGS_THERE = "Something hangs there (a mount, a driver, memory): run `ps -eo state,wchan,cmd` on the host."
_GATEWAY = "Check the gateway, or omit --gateways."
_BY_HAND = "Run the same command by hand: ssh HOST ddx node"
INSTALL = "Install this version of ddx there, or set DDX_ON_HOSTS=/path/to/ddx."
_SSHD_HANGS = "The host accepts connections but its sshd hangs: it may be out of memory, or hung in the kernel."
_NO_SSHD = "No sshd listens there, or a firewall rejects the connection: start it, or set the port with --via."
_BY_SSH_FIRST = "Log in once by ssh: ddx neither types passwords nor accepts new host keys."
_REASONS: tuple[tuple[str, str, str], ...] = (
    (r"Connection timed out during banner exchange", "silent", _SSHD_HANGS),
    (r"(?:Connection|Operation) timed out", "unreachable", _IS_IT_THERE),
    (r"No route to host|Network is unreachable|Host is down", "unreachable", _IS_IT_THERE),
    (r"Connection refused", "refused", _NO_SSHD),
    (r"Could not resolve hostname|Name or service not known", "unknown_name", "Use a name that the resolver knows."),
    (r"Permission denied[^\n]*|Host key verification failed", "not_permitted", _BY_SSH_FIRST),
    (
        r"[^\n]*(?:No such (?:file or directory|option|command)|[Cc]ommand not found|executable file not found"
        r"|: not found|Unknown command)[^\n]*",  # bash and zsh, tcsh, runc, dash and busybox, fish
        "no_ddx",
        INSTALL,
    ),
    (r"(?:srun: error: |Error from server|error: )[^\n]*", "refused", "The scheduler refuses to start it there."),
    (r"(?:Connection|Broken pipe|ssh:|kex_exchange)[^\n]*", "unreachable", _IS_IT_THERE),
)
"""Output of ssh, srun and kubectl when nothing was started; all of them exit with 255."""


def ask_all(
    reach: Reach, words: str, scratch: Path, limits: FanOutLimits, progress: Callable[[str], None]
) -> list[HostReplies]:
    """Run the same command on all hosts and return their replies. Its words must need no shell quoting."""
    from ClusterShell.Engine.Engine import EngineTimeoutException
    from ClusterShell.Event import EventHandler
    from ClusterShell.Task import TimeoutError, task_self
    from ClusterShell.Worker.Worker import WorkerError

    asked = {
        name: HostReplies(name, Inbox(scratch / f"{number}", limits.host_bytes))
        for number, name in enumerate(reach.hosts)
    }

    class Events(EventHandler):  # type: ignore[misc]
        """Records the output of each host."""

        done = 0

        def ev_pickup(self, worker: Any, node: str) -> None:
            asked[node].began_s = time.time()

        def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:
            asked[node].take(sname, msg)

        def ev_hup(self, worker: Any, node: str, rc: int) -> None:
            asked[node].rc, asked[node].ended_s = rc, time.time()
            self.done += 1
            progress(f"{self.done} of {len(asked)} hosts have answered")

        def ev_timer(self, timer: Any) -> None:
            raise EngineTimeoutException

    task = task_self()
    try:
        start_on_all(task, reach, words, limits, handler=(events := Events()), timeout=limits.host_s)
        # `run`'s own timeout starts anew with each line received.
        task.timer(limits.total_s, events, autoclose=True)
        try:
            task.run()
        except TimeoutError:
            pass
        except WorkerError as error:
            raise UsageError(f"the hosts cannot be reached: {error}", "Check --via.") from error
    finally:
        task.abort(kill=True)
    return list(asked.values())


def start_on_all(task: Any, reach: Reach, words: str, limits: FanOutLimits, **how: Any) -> None:
    """Schedule a command on all hosts in a ClusterShell task."""
    from ClusterShell.NodeSet import NodeSet
    from ClusterShell.Worker.Exec import ExecWorker

    for name in ("stdout_msgtree", "stderr_msgtree"):
        task.set_default(name, False)
    task.set_info("fanout", limits.at_once)
    task.set_info("connect_timeout", limits.connect_s)
    nodes = NodeSet.fromlist(list(reach.hosts))
    if reach.via:
        task.schedule(ExecWorker(nodes, command=f"exec {reach.via} {words}", stderr=True, **how))
    elif reach.gateways:
        from ddx_tools.investigation.many_hosts.gateways import through_gateways

        python = str(Path(reach.ddx).with_name("python3")) if reach.ddx else sys.executable
        task.schedule(through_gateways(task, reach.gateways, nodes, python, command=words, stderr=True, **how))
    else:
        task.shell(words, nodes=nodes, stdin=False, tree=False, stderr=True, **how)


def command_line(reach: Reach, *words: str, before: tuple[str, ...] = ()) -> str:
    """The command line of `ddx WORDS` for each host. Raises UsageError for words that a shell there would split."""
    ddx = reach.ddx or str(Path(sys.executable).with_name("ddx"))
    all_words = [*before, ddx, *words]
    if shlex.join(all_words) != " ".join(all_words):
        raise UsageError(
            f"{ddx}: a path that a shell would split", "Set DDX_ON_HOSTS to a path without special characters."
        )
    return " ".join(all_words)


def programs_at_once() -> int:
    """The number of programs that may run at once; raises this process's open-file limit as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_AT_ONCE * _FILES_A_PROGRAM + _FILES_OF_OURS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, (allowed - _FILES_OF_OURS) // _FILES_A_PROGRAM)
