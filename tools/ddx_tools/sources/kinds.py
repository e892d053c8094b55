"""Identifies the user's files: records and archives by their first bytes, texts by their content, of one or more kinds.

The name decides only if the content is ambiguous: a job directory also contains source code, data and unrelated pages.
A file that the user named explicitly is identified by its content, whatever its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from pathlib import PurePosixPath

from ddx_tools.model.files.kinds import HEAD_BYTES
from ddx_tools.model.files.log_text import encoding_of, without_colours
from ddx_tools.model.files.names import as_folders
from ddx_tools.model.files.suffixes import NO_LOG, NO_TEXT, PROGRAM, suffix


class TextKind(StrEnum):
    """The kinds of text; `ddx_tools.model.files.kinds` has the kinds of records and archives."""

    LOG = "log"
    ERROR_FILE = "error file"
    NCCL = "nccl log"
    RAS = "nccl ras"
    INSPECTOR = "nccl inspector"
    """Operations that a process finished, one JSON object per line, from NCCL's profiler plugin Inspector."""
    STACKS = "stack dump"
    PROCESSES = "process text"
    """Output of `ps` or from /proc about processes."""
    MACHINE = "machine text"
    LAUNCH = "launch"
    """An environment, a launch script, or a log that contains a launch command."""
    MESH = "mesh settings"
    NOTE = "note"
    PROGRAM = "program"
    FINGERPRINTS = "fingerprints"
    """Fingerprints of a rank's tensors: payloads/site/ddx_consistency.py."""
    SAMPLES = "stack samples"
    """Sampled stacks of a process with counts: `py-spy record --format raw`."""


Recogniser = Callable[[str, bytes], object]
"""Decides from a file's name and the beginning of its text whether a probe can read it; see `recognise`."""
_RECOGNISERS: dict[str, Recogniser] = {}


def recognise(kind: str, recogniser: Recogniser) -> None:
    """Register a probe's recogniser for a kind of text; the probe registry calls this for each probe."""
    _RECOGNISERS[kind] = recogniser


def _recognised(kind: TextKind, path: str, text: bytes) -> bool:
    return kind in _RECOGNISERS and bool(_RECOGNISERS[kind](plain_name(path), text))


TEXT, OTHER = "text", "other"
"""The kind of a file that is neither a record nor an archive."""
LAUNCH_BYTES = 256 << 10
_LAUNCH_BYTES_OF_LOG = 64 << 10
"""The beginning of a log that is searched for the launch command."""
NOTE_BYTES = 256 << 10
STACK_BYTES = 8 << 20
PROCESS_BYTES = 64 << 10
"""Longer texts are logs, not pasted process lists."""
_ERROR_FILE_BYTES = 1 << 20
LOOK_BYTES = 64 << 10
"""How much of a file's beginning and end is read to see whether NCCL or a system tool wrote to it;"""
LONG_LOOK_BYTES = 4 << 20
"""the same for a file that the user named explicitly."""
_NOT_ABOUT_LAUNCHING = NO_TEXT | {".csv", ".jsonl", ".toml"}
_LOG_NAME = re.compile(r"\.(?:log|out|err|stderr|stdout)(?:\.\d+)?$|(?:^|/)(?:stdout|stderr)[^/]*$", re.I)
_SETTING = re.compile(
    r"\.(?:toml|ya?ml|json|sh|bash|sbatch|slurm|job|txt|md|args|cfg|conf|log|out|err)$|/[^./]+$", re.I
)
_NAMED_AS_NOTE = re.compile(
    r"(?:^|[-_. ])(?:notes?|issues?|report|description|question|problem|bug|symptoms?|thread|post|observations?)"
    r"(?:[-_. ]\S{0,40})?$|^readme",
    re.I,
)
_WRITTEN_BY_HAND = re.compile(r"\.(?:md|markdown|rst|txt)$", re.I)
_PACKED_SUFFIX = re.compile(r"\.(?:gz|zst|zstd|xz|bz2)$", re.I)
_NOTES_DEEP = 2
"""Pages deeper in a project are not about the job."""
_FINGERPRINTS = b'{"ddx": "consistency/'
_ENVIRON = re.compile(rb"[A-Za-z_]\w*=[^\0]*\0")


def plain_name(path: str) -> str:
    """The file name without the suffixes of compression."""
    return _PACKED_SUFFIX.sub("", as_folders(path))


def may_be_text(head: bytes) -> bool:
    """Whether a file with this beginning can be a text; NULs may occur in UTF-16, in environments, in holes."""
    head = head[:HEAD_BYTES]
    return b"\0" not in head.strip(b"\0") or bool(encoding_of(head)) or _ENVIRON.match(head) is not None


def is_log_name(path: str) -> bool:
    """Whether a file's name is typical of a log."""
    return _LOG_NAME.search(plain_name(path)) is not None


def launch_text(path: str, data: bytes) -> bytes:
    """The part of a text that is searched for environments and launch commands."""
    return without_colours(data[: _LAUNCH_BYTES_OF_LOG if is_log_name(path) else LAUNCH_BYTES])


def kinds_of_text(path: str, head: bytes, tail: bytes, *, named: bool) -> set[TextKind]:
    """The kinds of a text, except those that are slow to detect: see `settings_in` and `is_note`."""
    from ddx_tools.parsers.launch.process_table import parse_process_text
    from ddx_tools.parsers.logs.log_lines import is_text_log
    from ddx_tools.parsers.nccl.nccl_ras import is_ras
    from ddx_tools.parsers.python.pyspy_json import looks_like_samples

    if head.startswith(_FINGERPRINTS):
        return {TextKind.FINGERPRINTS}
    if looks_like_samples(head):
        return {TextKind.SAMPLES}
    if _recognised(TextKind.INSPECTOR, path, head):
        return {TextKind.INSPECTOR}
    name = suffix(plain_name(path))
    if name == PROGRAM and head.strip():
        return {TextKind.PROGRAM}
    found: set[TextKind] = set()
    if named or name not in NO_LOG:
        content = head.lstrip(b"\0")
        if not content or content.lstrip()[:1] in (b"{", b"["):  # a hole, or JSON, which is identified by its end
            content += tail.lstrip(b"\0")
        if is_error_file(content):
            found.add(TextKind.ERROR_FILE)
        elif is_text_log(content):
            found.add(TextKind.LOG)
        if is_ras(head[:LONG_LOOK_BYTES].decode("utf-8", "replace")):
            found.add(TextKind.RAS)
        elif _holds_nccl(head, tail, named=named):
            found.add(TextKind.NCCL)
    if (named or name not in NO_TEXT) and (b"\0" not in head[:HEAD_BYTES] or encoding_of(head)):
        look = head[:LOOK_BYTES]
        if _recognised(TextKind.MACHINE, path, look):
            found.add(TextKind.MACHINE)
    if _holds_stacks(head):
        found.add(TextKind.STACKS)
    if parse_process_text(head[:PROCESS_BYTES].decode("utf-8", "replace")):
        found.add(TextKind.PROCESSES)
    return found


def is_error_file(text: bytes) -> bool:
    """Whether a text is the error file that a rank wrote when it raised."""
    from ddx_tools.parsers.python.error_file import parse_error_file

    return len(text) <= _ERROR_FILE_BYTES and parse_error_file(text) is not None


def _holds_nccl(head: bytes, tail: bytes, *, named: bool) -> bool:
    from ddx_tools.parsers.nccl.nccl_lines import holds_nccl

    look = LONG_LOOK_BYTES if named else LOOK_BYTES
    if holds_nccl(without_colours(head[:look])):
        return True
    return b"\0" not in head[:look] and holds_nccl(without_colours((tail or head)[-look:]))


def settings_in(path: str, head: bytes, *, named: bool) -> set[TextKind]:
    """The kinds of settings in a text: environments, launch commands or a mesh. Takes tens of milliseconds."""
    name = plain_name(path)
    text = launch_text(path, head)
    found: set[TextKind] = set()
    if (named or suffix(name) not in _NOT_ABOUT_LAUNCHING) and _recognised(TextKind.LAUNCH, path, text):
        found.add(TextKind.LAUNCH)
    if (named or _SETTING.search(name)) and _recognised(TextKind.MESH, path, text):
        found.add(TextKind.MESH)
    return found


def is_named_note(path: str) -> bool:
    """Whether a file's name says that it is a note."""
    return _NAMED_AS_NOTE.search(PurePosixPath(plain_name(path)).stem) is not None


def is_note(path: str, head: bytes, depth: int, *, named: bool) -> bool:
    """Whether a text is a person's note about the job; `depth` is the number of directories below the named path."""
    from ddx_tools.knowledge.prose import is_note as is_prose
    from ddx_tools.parsers.logs.log_lines import is_text_log

    name = plain_name(path)
    named_so = is_named_note(path)
    if not named:
        by_hand = _WRITTEN_BY_HAND.search(name) is not None and (named_so or name.lower().endswith(".txt"))
        if not by_hand or depth > _NOTES_DEEP:
            return False
    data = head[:NOTE_BYTES]
    return is_text_log(data) and is_prose(data.decode("utf-8", "replace"), named_so=named_so)


def _holds_stacks(head: bytes) -> bool:
    """Whether a text is a dump of py-spy or pystack."""
    from ddx_tools.parsers.python.pyspy_text import looks_like_pyspy_text
    from ddx_tools.parsers.python.pystack_text import is_pystack

    if head.lstrip()[:1] == b"[":
        return _is_pyspy_json(head)
    of_pyspy = b"\nThread " in b"\n" + head or b" (most recent call first):" in head
    of_pystack = b"Traceback for thread " in head or b"Core file information:" in head
    if not (of_pyspy or of_pystack):
        return False
    text = head[:STACK_BYTES].decode("utf-8", "replace")
    return (of_pyspy and looks_like_pyspy_text(text)) or (of_pystack and is_pystack(text))


def _is_pyspy_json(data: bytes) -> bool:
    from ddx_tools.model.errors import UnreadableInput
    from ddx_tools.parsers.python.pyspy_json import parse_pyspy

    try:
        return any(thread.frames for thread in parse_pyspy(data[:STACK_BYTES]))
    except UnreadableInput:
        return False
