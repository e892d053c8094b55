"""A host without ddx, asked through a program that reaches it: ssh, srun, kubectl exec."""

from __future__ import annotations

import base64
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType

from ddx_tools.model.errors import HostError, TimedOut
from ddx_tools.payloads import HOST_AGENT_DIRECTORY
from ddx_tools.redaction.text import redact
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.remote.agent import MOST_BYTES, TAG, unpacked
from ddx_tools.sources.remote.archive import OLDEST_PYTHON, archive

PYTHON_THERE = ("python3", "-I", "-q", "-u", "-i")
"""An interactive Python: a command line without characters that are special to any shell."""
_ANSWER_S = 20.0
"""The timeout for a call without its own limit; added to a call's own limit for the transfer."""
_LONGEST_LINE = 2 * MOST_BYTES
_STDERR_BYTES = 2_000
_READY = re.compile(rb"ddx1 ready (\d+)\.(\d+) (\S+) (\S+)")


class NoAgent(HostError):
    """Our program could not be started on the host."""


class RemoteHost(Host):
    """Answers from another machine that needs only Python. Use as a context manager: nothing stays there.

    `argv` starts PYTHON_THERE on the machine. Everything ends after `seconds`. Raises NoAgent.
    """

    def __init__(self, argv: Sequence[str], seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._sending = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Reply]] = {}
        self._number = 0
        self._ended = False
        self._printed = bytearray()
        self.size_bytes = 0
        """The total size of its packed answers."""
        pipe = subprocess.PIPE
        try:
            self._running = subprocess.Popen(argv, start_new_session=True, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise NoAgent(f"{argv[0]}: {error.strerror}") from error
        calls, replies, errors = self._running.stdin, self._running.stdout, self._running.stderr
        assert calls
        assert replies
        assert errors
        self._calls, self._replies, self._errors = calls, replies, errors
        self._ending = threading.Timer(seconds, self._kill)
        self._ending.daemon = True
        self._ending.start()
        self._hearing = [self._heard_by(self._hear_errors)]
        try:
            self.name, self.clock_s = self._hello()
        except BaseException:
            self.close()
            raise
        self._hearing.append(self._heard_by(self._hear))

    @staticmethod
    def _heard_by(hear: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        return thread

    def _hello(self) -> tuple[str, float]:
        """Start Python and send the archive; return the host's name and its clock in seconds since the epoch."""
        start = base64.b64encode((HOST_AGENT_DIRECTORY / "__main__.py").read_bytes()).decode()
        self._send(f"import base64;exec(base64.b64decode('{start}'))\n".encode())
        ready = _READY.match(self._line(b"ready"))
        if ready is None:
            raise NoAgent("its output is not from ddx")
        here, there = os.uname(), (ready[3].decode(), ready[4].decode())
        version = int(ready[1]), int(ready[2])
        if version < OLDEST_PYTHON:
            raise NoAgent(f"its python3 is {version[0]}.{version[1]}, but 3.8 or newer is needed")
        if there != ("linux", here.machine):
            raise NoAgent(f"it is a different machine type ({' '.join(there)[:60]}; {here.machine} here)")
        sent = archive()
        self._send(b"%20d" % len(sent) + sent)
        try:
            hello = json.loads(self._line(b"hello").split(b" ", 2)[2])
            return str(hello["host"])[:253], float(hello["clock_s"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise NoAgent("its output is not from ddx") from error

    def _line(self, kind: bytes) -> bytes:
        """The next line in our format; login banners and prompts are skipped."""
        while line := self._replies.readline(_LONGEST_LINE):
            _, tag, rest = line.partition(TAG + kind + b" ")
            if tag:
                return bytes(tag + rest).rstrip(b"\r\n")
        with suppress(subprocess.TimeoutExpired):
            self._running.wait(1.0)
        self._hearing[0].join(1.0)
        printed = self._printed.decode("utf-8", "replace").replace(">>> ", "")
        raise NoAgent(f"no answer from it ({' '.join(printed.split())[:300] or 'it printed nothing'})")

    def _send(self, data: bytes) -> None:
        try:
            with self._sending:
                self._calls.write(data)
                self._calls.flush()
        except OSError:
            pass  # the reader of the answer reports the reason

    def _hear_errors(self) -> None:
        with suppress(ValueError, OSError):
            for line in self._errors:
                self._printed += line[: max(0, _STDERR_BYTES - len(self._printed))]

    def _hear(self) -> None:
        with suppress(ValueError, OSError):
            while line := self._replies.readline(_LONGEST_LINE):
                words = line.split()
                if len(words) == 4 and words[:2] == [*TAG.split(), b"reply"] and words[2].isdigit():
                    self._hand_over(int(words[2]), words[3])
        with self._sending:
            self._ended = True
        for number in list(self._waiting):
            self._put(number, self._no_connection())

    def _no_connection(self) -> Reply:
        return error_reply(HostError(f"the connection to {self.name} ended", "Ask again."))

    def _hand_over(self, number: int, word: bytes) -> None:
        self.size_bytes += len(word)
        try:
            reply = unpacked(word)
        except ValueError as error:
            reply = error_reply(HostError(f"the answer of {self.name} cannot be read: {error}"[:300], "Ask again."))
        self._put(number, reply)

    def _put(self, number: int, reply: Reply) -> None:
        if answer := self._waiting.pop(number, None):
            answer.put(reply)

    def pause(self, seconds: float) -> None:
        """Sleep on this machine."""
        time.sleep(seconds)

    def answer(self, call: HostCall) -> Reply:
        """Perform the call on the remote host."""
        limit = float(call.options.get("timeout_s", 0.0)) + _ANSWER_S
        answer: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        with self._sending:
            if self._ended:
                return self._no_connection()
            number = self._number = self._number + 1
            self._waiting[number] = answer
        asked: Mapping[str, object] = {
            "id": number, "op": call.op, "key": call.key, "options": dict(call.options), "suffix": call.suffix,
        }  # fmt: skip
        self._send(json.dumps(asked).encode() + b"\n")
        try:
            return answer.get(timeout=max(0.0, min(limit, self._deadline - time.monotonic())))
        except queue.Empty:
            self._waiting.pop(number, None)
            return error_reply(TimedOut(f"{self.name} did not answer in time: {redact(call.key)[:100]}", ""))

    def close(self) -> None:
        """End the remote program by closing its standard input."""
        self._ending.cancel()
        with suppress(OSError):
            self._calls.close()
        try:
            self._running.wait(2.0)
        except subprocess.TimeoutExpired:
            self._kill()
            self._running.wait()
        for thread in self._hearing:
            thread.join(1.0)
        for stream in (self._replies, self._errors):
            stream.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._running.pid, signal.SIGKILL)

    def __enter__(self) -> RemoteHost:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
