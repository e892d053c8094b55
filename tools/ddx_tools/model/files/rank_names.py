"""Extracts rank, host and attempt from file names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddx_tools.model.files.names import as_folders

_DIGITS = r"(\d{1,7})(?!\d)"
_RANK_IN_NAME = (
    # rank_3, nccl_trace_rank_3, rank-3.812.…; a local rank or a node rank is a different number
    re.compile(rf"(?:^|[^a-z])(?<!local[-_.])(?<!node[-_.])(?<!group[-_.])rank[-_ ]?{_DIGITS}", re.IGNORECASE),
    re.compile(rf"_dump_{_DIGITS}"),  # the prefix documented by `torchfrtrace`
    re.compile(rf"^(?:r|worker)[-_]?{_DIGITS}", re.IGNORECASE),
    # any prefix, as TORCH_FR_DUMP_TEMP_FILE allows
    re.compile(r"^(?:.*[-_.])?(\d{1,7})(?:\.(?:pkl|pickle|json|bin|fr))?$"),
)
_NO_RANK = re.compile(r"\d{8}[-_T]?\d{4,6}(?:\D|$)|(?:local|node|group)[-_.]?rank", re.IGNORECASE)
"""A date and time, as at the end of the debug server's periodic dumps; and other kinds of ranks."""
_RANK_FOLDER = re.compile(rf"rank[-_]?{_DIGITS}", re.IGNORECASE)
_PACKED = re.compile(r"(?:\.(?:gz|zst|zstd|xz|bz2|tgz|txz|tar|zip))+$", re.IGNORECASE)
_HOST = r"(?:(?:node|host|nid|dgx|hgx|compute)[-_]?\d{1,9}(?:-\d{1,9}){0,3}|ip(?:-\d{1,3}){4})"
"""Typical names of cluster hosts; other words could name anything: a job, a run, a device."""
_HOST_IN_NAME = re.compile(rf"(?:^|[-_.])({_HOST})(?=[-_.]|$)", re.IGNORECASE)
_HOST_FOLDER = re.compile(rf"{_HOST}(?:\.[a-z0-9.-]{{1,200}})?", re.IGNORECASE)
_FOLDERS = 4
"""How many folders above a file may name its rank or host."""


@dataclass(frozen=True)
class NameFacts:
    """Facts in the path of a dump: rank, host and attempt."""

    rank: int | None
    host: str | None
    attempt: str
    """The part shared by all ranks' files of one attempt: the folder, and the name up to the rank."""


def rank_of_name(name: str) -> int | None:
    """Extract the rank from a file name such as `nccl_trace_rank_3` or `rank-3.812.exception.fr.pickle`."""
    return facts_of_name(name).rank


def facts_of_name(name: str) -> NameFacts:
    """Extract rank, host and attempt from a path, which may be inside an archive (`dumps.tar.gz!node-2/rank4`).

    A folder counts only if its whole name matches. A fact on which two parts of the path disagree is None.
    """
    parts = as_folders(name).split("/")
    rank, start = _rank_in_file(unpacked_name(parts[-1]))
    attempt = "/".join([*parts[:-1], f"{parts[-1][:start]}*"])
    if rank is None:
        rank, above = _rank_in_folders(parts)
        attempt = "/".join([*parts[:above], "*", *parts[above + 1 :]]) if rank is not None else "/".join(parts)
    hosts = set(_hosts(parts))
    return NameFacts(rank, hosts.pop() if len(hosts) == 1 else None, attempt)


def is_due(name: str) -> bool:
    """Whether a name promises a record, so that an empty file means its rank died while writing it."""
    return "rank" in as_folders(name).rsplit("/", 1)[-1]


def unpacked_name(name: str) -> str:
    """The name without the suffix that compression added."""
    return _PACKED.sub("", name)


def _rank_in_file(name: str) -> tuple[int | None, int]:
    """(rank, position at which it begins) in a file name."""
    explicit, *others = _RANK_IN_NAME
    patterns = (explicit,) if _NO_RANK.search(name) else (explicit, *others)
    match = next((match for pattern in patterns if (match := pattern.search(name))), None)
    return (int(match[1]), match.start(1)) if match else (None, 0)


def _rank_in_folders(parts: list[str]) -> tuple[int | None, int]:
    """(rank, index of the nearest folder that names it) in a path's folders."""
    for index in range(len(parts) - 2, max(-1, len(parts) - 2 - _FOLDERS), -1):
        if match := _RANK_FOLDER.fullmatch(_folder(parts[index])):
            return int(match[1]), index
    return None, 0


def _hosts(parts: list[str]) -> Iterator[str]:
    yield from _HOST_IN_NAME.findall(unpacked_name(parts[-1]))
    yield from (folder for part in parts[-1 - _FOLDERS : -1] if _HOST_FOLDER.fullmatch(folder := _folder(part)))


def _folder(part: str) -> str:
    """The name of a folder, or of an archive that serves as one."""
    return unpacked_name(part.removesuffix("!"))
