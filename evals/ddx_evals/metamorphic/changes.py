"""Meaningless changes to material, after which the answer must stay the same.

A change takes the texts of a folder and returns them changed, or None if it does not apply: no change is better than
half a change, such as when ranks are named in an unknown way.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from ddx_evals.metamorphic.clocks import with_later_clocks
from ddx_evals.metamorphic.growth import LOG_SUFFIXES, first_date, grown

Texts = Mapping[str, bytes]
"""Texts by path within the folder."""

_LOG_STEMS = frozenset({"log", "out", "err", "stdout", "stderr", "console", "output"})
_NEUTRAL_BYTES = 4_000
_NEW_NAMES = ("juniper", "larch", "sorrel", "thistle", "yarrow", "bramble", "clover", "fennel", "hazel", "linden")
_HAS_NUMBER = re.compile(r"\d")
_RANK_FILE = re.compile(r"^rank[-_]?(\d{1,5})\.(?:log|out|err|txt)$")
_RANK_LABEL = re.compile(rb"(?m)^\[rank(\d{1,5})\]:")
_RANK_NAMED = re.compile(rb"(?i)(?<![\w-])((?:\[|Global )?rank[ _:=#]{0,2})(\d{1,4})(?![\w.]|-\d)")
_RANKS_OTHERWISE = re.compile(
    rb"(?im)local.?rank|\[default\d|\b[tpd]p[ _]?\d|\b(?:tp|pp|dp|ep|cp|mp)\b|NCCL INFO|RANK=|srun|cuda:\d"
    rb"|ranks\W{1,4}\d"
    rb"|rank\w*[ :=]{1,3}\d+ ?(?:-|\.\.|,|and|to|/|or|&) ?\d|^\W{0,4}rank\W+[a-z]|device|gpu|\bworker|node|host"
    rb"|\bGLOO|fatal"
    rb"|root|send|recv|src|dst|peer|pipeline|stage|tensor.parallel|mesh|group|members?|torchrun|ranks? \d+ ?:"
    rb"|proc|\bpid\b"
)
_HOME = re.compile(rb"/(?:home|Users)/([a-z][\w.-]{0,30})(?=/)")
_HOSTS = re.compile(
    rb"(?m)^([A-Za-z][\w.-]{1,60}):\d+:\d+ \[\d\] |"
    rb"(?<![\w./-])((?:[a-z]{0,8}node|host|gpunode|worker-node)-?\d{1,4})(?![\w/-])"
)
_PRIVATE = re.compile(rb"(?<![\d.])(?:10\.(\d{1,3})|192\.168)\.(\d{1,3})\.(\d{1,3})(?![\d.]*\d)")
_LEVELS = re.compile(rb"\b(INFO|WARNING|WARN|ERROR|DEBUG)\b")
_LOUD = re.compile(rb"(?m)^.{0,200}(?:Error|error|Exception|failed)\b.*$")
_NOTE = re.compile(r"^(?:notes?|readme|issue|report)\b", re.I)


@dataclass(frozen=True)
class Changed:
    """Changed texts, with the new names of ranks and hosts."""

    texts: Texts
    ranks: Mapping[int, int] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)


Change = Callable[[Texts, random.Random], Changed | None]


def is_log(path: str) -> bool:
    """Whether a file is a log, by its name."""
    name = PurePosixPath(path)
    return name.suffix in LOG_SUFFIXES or (name.suffix in ("", ".txt") and name.stem in _LOG_STEMS)


def is_note(path: str) -> bool:
    """Whether a file is a person's note, by its name."""
    return bool(_NOTE.match(PurePosixPath(path).name))


def neutral_lines(texts: Texts, rng: random.Random) -> Changed | None:
    """Insert library lines that occur in any job into logs, with times of the log or, without, of the other files."""
    changed = {}
    for path, data in texts.items():
        if is_log(path):
            start = first_date([data, *texts.values()])
            data = grown(data, _NEUTRAL_BYTES, rng.randrange(1 << 30), moves=False, start=start)
        changed[path] = data
    return Changed(changed) if changed != texts else None


def renamed_files(texts: Texts, rng: random.Random) -> Changed | None:
    """Rename files without a number in their name, also where texts mention them."""
    fresh = rng.sample(_NEW_NAMES, len(_NEW_NAMES))
    names: dict[str, str] = {}
    for path in sorted(texts):
        name = PurePosixPath(path)
        if not (is_note(path) or _HAS_NUMBER.search(name.stem)) and name.suffix and fresh:
            names[name.name] = fresh.pop() + name.suffix
    if not names:
        return None
    changed = {}
    for path, data in texts.items():
        place = PurePosixPath(path)
        changed[str(place.with_name(names.get(place.name, place.name)))] = _replaced(data, names)
    return Changed(changed)


def renamed_hosts(texts: Texts, rng: random.Random) -> Changed | None:
    """Rename hosts, keeping their numbers, and change private addresses."""
    found = {(one or other).decode() for data in texts.values() for one, other in _HOSTS.findall(data)}
    fresh = rng.sample(_NEW_NAMES, len(_NEW_NAMES))
    stems: dict[str, str] = {}
    hosts = {}
    for name in sorted(found):
        stem = name.rstrip("0123456789")
        if stem not in stems and fresh:
            stems[stem] = fresh.pop() + ("-" if name != stem else "")
        hosts[name] = stems.get(stem, stem) + name[len(stem) :]

    def moved(match: re.Match[bytes]) -> bytes:
        third, last = (int(match[2]) + 17) % 256, match[3]
        if match[1] is None:
            return b"192.168.%d.%b" % (third, last)
        return b"10.%d.%b.%b" % ((int(match[1]) + 17) % 256, match[2], last)

    changed = {_named(path, hosts): _PRIVATE.sub(moved, _replaced(data, hosts)) for path, data in texts.items()}
    return Changed(changed, hosts=hosts) if changed != texts else None


def _named(path: str, names: Mapping[str, str]) -> str:
    """A path with an old name in its file name replaced by the new one."""
    place = PurePosixPath(path)
    return str(place.with_name(names[place.stem] + place.suffix)) if place.stem in names else path


def renamed_users(texts: Texts, rng: random.Random) -> Changed | None:
    """Rename the owner of the home directory."""
    users = sorted({name.decode() for data in texts.values() for name in _HOME.findall(data)})
    names = dict(zip(users, rng.sample(_NEW_NAMES, min(len(users), len(_NEW_NAMES))), strict=False))
    changed = {
        path: _HOME.sub(lambda m: m[0].replace(m[1], names.get(m[1].decode(), m[1].decode()).encode()), data)
        for path, data in texts.items()
    }
    return Changed(changed) if changed != texts else None


def permuted_ranks(texts: Texts, rng: random.Random) -> Changed | None:
    """Renumber the ranks except rank 0, if they are named in only one way."""
    named = {int(number) for data in texts.values() for _, number in _RANK_NAMED.findall(data)}
    named |= {int(found[1]) for path in texts if (found := _RANK_FILE.match(PurePosixPath(path).name))}
    moving = sorted(named - {0})
    told = b"\n".join(data for path, data in texts.items() if not path.endswith(".py"))
    if len(moving) < 2 or _RANKS_OTHERWISE.search(_RANK_NAMED.sub(b"", told)):
        return None
    pick = rng.randrange(1, len(moving))
    ranks = dict(zip(moving, moving[pick:] + moving[:pick], strict=True))

    def other(match: re.Match[bytes]) -> bytes:
        return match[1] + str(ranks.get(int(match[2]), int(match[2]))).encode()

    changed = {}
    for path, data in texts.items():
        place = PurePosixPath(path)
        if found := _RANK_FILE.match(place.name):
            number = int(found[1])
            place = place.with_name(place.name.replace(found[1], str(ranks.get(number, number)), 1))
        changed[str(place)] = _RANK_NAMED.sub(other, data)
    return Changed(changed, ranks=ranks)


def interleaved_logs(texts: Texts, rng: random.Random) -> Changed | None:
    """Merge the logs of ranks into one, with a label on each line."""
    own = {int(found[1]): path for path in texts if (found := _RANK_FILE.match(PurePosixPath(path).name))}
    own = {rank: path for rank, path in own.items() if not _RANK_LABEL.search(texts[path])}
    if len(own) < 2:
        return None
    left = {rank: texts[path].splitlines() for rank, path in own.items()}
    lines = []
    while left:
        rank = rng.choice(sorted(left))
        many = rng.randrange(1, 5)
        lines += [b"[rank%d]: %b" % (rank, line) for line in left[rank][:many]]
        left[rank] = left[rank][many:]
        left = {rank: rest for rank, rest in left.items() if rest}
    changed = {path: data for path, data in texts.items() if path not in own.values()}
    return Changed(changed | {"all_ranks.log": b"\n".join(lines) + b"\n"})


def split_logs(texts: Texts, rng: random.Random) -> Changed | None:
    """Split a common log into one log per rank, by the label of each line."""
    changed = dict(texts)
    for path, data in texts.items():
        if not is_log(path) or len(set(_RANK_LABEL.findall(data))) < 2:
            continue
        parts: dict[str, list[bytes]] = {}
        for line in data.splitlines(keepends=True):
            label = _RANK_LABEL.match(line)
            own = f"rank{label[1].decode()}.log" if label else PurePosixPath(path).name
            parts.setdefault(str(PurePosixPath(path).with_name(own)), []).append(line)
        if set(parts) & (set(changed) - {path}):
            continue
        del changed[path]
        changed |= {name: b"".join(lines) for name, lines in parts.items()}
    return Changed(changed) if changed != texts else None


def shifted_clocks(texts: Texts, rng: random.Random) -> Changed | None:
    """Shift all clocks a few hours later, within the same day."""
    changed = with_later_clocks(texts, rng)
    return Changed(changed) if changed else None


def carriage_returns(texts: Texts, rng: random.Random) -> Changed | None:
    """Change the line ends of texts to those of Windows."""
    return Changed(
        {
            path: data if b"\0" in data else data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
            for path, data in texts.items()
        }
    )


def colours(texts: Texts, rng: random.Random) -> Changed | None:
    """Colour levels and failures in logs."""
    changed = {
        path: _LEVELS.sub(b"\x1b[1;32m\\1\x1b[0m", _LOUD.sub(b"\x1b[31m\\g<0>\x1b[0m", data)) if is_log(path) else data
        for path, data in texts.items()
    }
    return Changed(changed) if changed != texts else None


def dropped_notes(texts: Texts, rng: random.Random) -> Changed | None:
    """Remove people's notes."""
    changed = {path: data for path, data in texts.items() if not is_note(path)}
    return Changed(changed) if changed and changed != texts else None


CHANGES: Mapping[str, Change] = {
    change.__name__.replace("_", " "): change
    for change in (
        neutral_lines,
        renamed_files,
        renamed_hosts,
        renamed_users,
        permuted_ranks,
        interleaved_logs,
        split_logs,
        shifted_clocks,
        carriage_returns,
        colours,
        dropped_notes,
    )
}


def _replaced(data: bytes, names: Mapping[str, str]) -> bytes:
    """Replace names in a text where they are whole words."""
    if not names:
        return data
    longest = sorted(names, key=len, reverse=True)
    either = re.compile(rb"(?<![\w.-])(?:%b)(?![\w-])" % b"|".join(re.escape(name.encode()) for name in longest))
    return either.sub(lambda match: names[match[0].decode()].encode(), data)
