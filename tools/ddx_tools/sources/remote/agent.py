"""The program that runs on a host without ddx: it answers `Host` calls, one redacted line each.

    {"id", "op", "key", "options", "suffix"}                    a call, on standard input
    ddx1 hello {"host", "clock_s"}                              at first
    ddx1 reply <id> <base64 of zlib of: header, newline, data, end>
                                                                its answer, in any order; header: the fields of Reply

It runs on Python 3.8 and later without any package: see `ddx_tools.sources.remote.archive`. It ends when its standard
input closes or its time is up, and leaves nothing behind.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import BinaryIO

from ddx_tools.model.errors import HostError
from ddx_tools.redaction.text import redact
from ddx_tools.sources.host import Host, HostCall, Reply, error_reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.pyspy import PROGRAM
from ddx_tools.sources.hosts.redacted_reply import redacted_reply

PYSPY = "bin/py-spy"
"""Its path in the archive."""
TAG = b"ddx1 "
OF_HEADERS = ("rc", "truncated", "error", "message", "help", "kind")
MOST_BYTES = 64 << 20
"""Limit on one answer."""
_AT_ONCE = 8
_FAST = 1
"""A zlib level that shrinks text to a fifth, as fast as ssh can send it."""


def serve(calls: BinaryIO, write: Callable[[bytes], object], host: Host) -> None:
    """Answer calls from `calls` until there are no more."""
    writing = threading.Lock()

    def say(line: bytes) -> None:
        with writing:
            write(line)

    def answer(line: bytes) -> None:
        asked = json.loads(line)
        call = HostCall(asked["op"], asked["key"], asked["options"], asked["suffix"])
        say(TAG + b"reply %d " % asked["id"] + packed(_answered(host, call)) + b"\n")

    say(TAG + b"hello " + json.dumps({"host": host.name, "clock_s": time.time()}).encode() + b"\n")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line in calls:
            pool.submit(answer, line)


def _answered(host: Host, call: HostCall) -> Reply:
    """Answer one call; a failed call does not affect the others."""
    try:
        reply = host.answer(call)
        if reply.file:
            reply = replace(reply, data=_whole(reply.file), file=None)
        return redacted_reply(call, reply)
    except Exception as error:
        # Even the error message is redacted.
        problem = redact(str(error) or type(error).__name__)
        return error_reply(HostError(f"{call.op}: {problem[:500]}", "Install ddx on that host and try again."))


def _whole(file: str) -> bytes:
    path = Path(file)
    if path.stat().st_size > MOST_BYTES:
        raise HostError(f"{file}: larger than {MOST_BYTES >> 20} MiB, the limit for a host without ddx", "")
    return path.read_bytes()


def packed(reply: Reply) -> bytes:
    """Encode an answer as one word of a line."""
    end = reply.end
    header = {name: getattr(reply, name) for name in OF_HEADERS}
    header.update(bytes=len(reply.data), end=None if end is None else len(end))
    return base64.b64encode(zlib.compress(json.dumps(header).encode() + b"\n" + reply.data + (end or b""), _FAST))


def unpacked(word: bytes) -> Reply:
    """Decode an answer from `packed`. Raises ValueError for anything else, also if it is too large."""
    try:
        take = zlib.decompressobj()
        plain = take.decompress(base64.b64decode(word, validate=True), 2 * MOST_BYTES)
        if take.unconsumed_tail or not take.eof:
            raise ValueError("it is too large, or cut off")
        head, _, rest = plain.partition(b"\n")
        header = json.loads(head)
        size, end = int(header["bytes"]), header["end"]
        error, kind = (None if header[name] is None else str(header[name]) for name in ("error", "kind"))
        return Reply(
            rest[:size],
            int(header["rc"]),
            bool(header["truncated"]),
            error,
            str(header["message"]),
            str(header["help"]),
            kind=kind,
            end=None if end is None else rest[size : size + int(end)],
        )
    except (zlib.error, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{type(problem).__name__}: {problem}") from problem


def main() -> None:
    """Serve this host over standard input and output, with the tools from the archive."""
    replies = os.dup(1)
    os.dup2(2, 1)  # printed output must not mix with answers
    prepare()

    def write(line: bytes) -> None:
        while line:
            line = line[os.write(replies, line) :]

    with open(0, "rb", closefd=False) as calls:
        serve(calls, write, LocalHost(socket.gethostname()))
    sys.stderr.flush()
    os._exit(0)


def prepare() -> None:
    """Make py-spy and the C extensions in the archive, which is first on the path, available to this process."""
    with zipfile.ZipFile(sys.path[0]) as archive:
        os.environ[PROGRAM] = in_memory(archive.read(PYSPY))
        for library in (name for name in archive.namelist() if name.endswith(".so")):
            _load(library.partition(".")[0].replace("/", "."), in_memory(archive.read(library)))


def _load(name: str, file: str) -> None:
    """Import a C extension under a name from any file, which the archive importer cannot do."""
    loader = ExtensionFileLoader(name, file)
    spec = spec_from_loader(name, loader)
    if spec is None:
        raise ImportError(name)
    sys.modules[name] = module = module_from_spec(spec)
    loader.exec_module(module)


_MFD_CLOEXEC, _MFD_EXEC = 0x1, 0x10


def in_memory(program: bytes) -> str:
    """A path from which a program can be started or a library loaded while this process lives."""
    try:  # Linux 6.3 and later need the flag MFD_EXEC, which earlier versions do not know
        number = os.memfd_create("ddx", _MFD_CLOEXEC | _MFD_EXEC)
    except OSError:
        number = os.memfd_create("ddx", _MFD_CLOEXEC)
    with open(number, "wb", closefd=False) as stream:
        stream.write(program)
    return f"/proc/{os.getpid()}/fd/{number}"
