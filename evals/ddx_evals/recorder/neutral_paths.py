"""Replaces the recording machine's paths in a bundle by neutral paths of the same length.

The length stays, because records store string lengths. File names and the journal's keys change too, because a replay
asks for the paths that it reads.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from ddx_tools.sources.packed_bundle import MANIFEST

_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_NEUTRAL = "/opt/train/project/environment/python/install"
_SITES = [("https://" + "pypi.org", "https://site.org")]
"""Links that frameworks print: nothing in this repository links to a package registry."""


def own_paths() -> list[str]:
    """The paths of this interpreter and this checkout, longest first."""
    checkout = Path(__file__).resolve().parents[3]
    paths = {sys.prefix, sys.base_prefix, str(checkout), str(Path.home())}
    return sorted((path for path in paths if path.count("/") > 1 or path == str(Path.home())), key=len, reverse=True)


def make_neutral(directory: Path, paths: Iterable[str]) -> None:
    """Replace `paths` in the files below a directory and in their names.

    A bundle's files, which are named after their content, are renamed.
    """
    pairs = [*_SITES, *(pair for path in paths for pair in _pairs(path))]
    digests = list[tuple[str, str]]()
    for file in sorted(directory.rglob("*")):
        if not file.is_file():
            continue
        data = before = file.read_bytes()
        for old, new in pairs:
            data = data.replace(old.encode(), new.encode())
        file.write_bytes(data)
        name = file.name
        for old, new in pairs:
            name = name.replace(old, new)
        if data != before and _digest(before).startswith(file.stem) and _DIGEST.fullmatch(file.stem):
            digests.append((file.stem, _digest(data)[: len(file.stem)]))
            name = name.replace(*digests[-1])
        file.rename(file.with_name(name))
    for manifest in directory.rglob(MANIFEST):
        text = manifest.read_text(encoding="utf-8")
        for old, new in digests:
            text = text.replace(old, new)
        manifest.write_text(text, encoding="utf-8")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def neutral(path: str) -> str:
    """A neutral path of the same length: /home/somebody/git → /opt/train/project."""
    padded = _NEUTRAL + "x" * max(0, len(path) - len(_NEUTRAL))
    cut = padded[: len(path)]
    return cut[:-1] + "x" if cut.endswith("/") else cut


def _pairs(path: str) -> list[tuple[str, str]]:
    """The path, and its form in the names of answers."""
    other = neutral(path)
    slugs = [_UNSAFE.sub("_", each).strip("_") for each in (path, other)]
    # A single word, such as `root` from /root, may mean something else.
    is_path = "_" in slugs[0] and len(slugs[0]) == len(slugs[1])
    return [(path, other), (slugs[0], slugs[1])] if is_path else [(path, other)]
