"""Flight records out of files and directories, told from everything else by their content."""

from __future__ import annotations

from ddx_tools.errors import HostError
from ddx_tools.flight_records.material import DUMP, HEADER
from ddx_tools.formats.fr_dump import looks_like_dump
from ddx_tools.formats.fr_pickle import MAX_BYTES
from ddx_tools.hosts.base import Host
from ddx_tools.probe import Raw, RawItem

_SNIFF_BYTES = 1024
_MAX_FILES = 10_000


def read_paths(host: Host, raw: Raw, paths: list[str]) -> None:
    """Add the records and side-cars among some files and directories to `raw`; other files are left alone."""
    files = list(dict.fromkeys(file for path in paths for file in host.files_below(path)))
    for path in files[:_MAX_FILES]:
        try:
            _read_one(host, raw, path, named=path in paths)
        except HostError as error:
            raw.failed(path, error, "it may be the record of a rank")
    if len(files) > _MAX_FILES:
        raw.problems.append(f"{len(files)} files: only the first {_MAX_FILES} were looked at. Name a narrower path.")
    dumps = len(raw.of(DUMP))
    raw.searched.append(f"{min(len(files), _MAX_FILES)} files in {', '.join(paths)[:300]}: {dumps} flight records")


def _read_one(host: Host, raw: Raw, path: str, *, named: bool) -> None:
    try:
        head = host.read(path, max_bytes=_SNIFF_BYTES, suffix="bin").data
    except HostError:
        if named:
            raise
        return  # a directory, a socket, a file that vanished: nobody asked for it by name
    is_header = head.lstrip()[:1] == b"{" and b'"rank"' in head and b'"taken_at_ns"' in head
    # An empty file where a record was due is what a rank leaves that died while writing it.
    expected = named or "rank" in path.rsplit("/", 1)[-1]
    if not (is_header or looks_like_dump(head) or (expected and (not head or head[:1] == b"\x80"))):
        return
    reply = host.read(path, max_bytes=MAX_BYTES, suffix="bin")
    facts = {"path": path, "origin": "file"}
    raw.items.append(RawItem(HEADER if is_header else DUMP, reply.data, reply.source or path, facts))
