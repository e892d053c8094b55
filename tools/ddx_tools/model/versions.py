"""Versions of torch and NCCL: comparing them, and finding them in text.

The running torch decides which variables are read; the NCCL it ships with is known from its packages
(`knowledge/env_vars/names.yaml`, `nccl_of_torch`) unless something shows that another one was installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Library = Literal["torch", "nccl"]
_NUMBERS = re.compile(r"(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")


@total_ordering
@dataclass(frozen=True)
class Version:
    """A version such as `2.21` or `2.21.5`; missing parts count as 0."""

    numbers: tuple[int, ...]

    @classmethod
    def of(cls, text: str) -> Version:
        """Parse the version at the start of a text. Raises ValueError if there is none."""
        found = _NUMBERS.match(text)
        if not found:
            raise ValueError(f"{text!r} is not a version")
        return cls(tuple(int(number) for number in found.groups() if number is not None))

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers))

    def __lt__(self, other: Version) -> bool:
        return self._padded < other._padded

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._padded == other._padded

    def __hash__(self) -> int:
        return hash(self._padded)

    @property
    def _padded(self) -> tuple[int, int, int]:
        first, second, third = (*self.numbers, 0, 0, 0)[:3]
        return first, second, third

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, cls) else cls.of(str(value)), core_schema.is_instance_schema(cls)
        )


@dataclass(frozen=True)
class VersionSeen:
    """A library version named in a text."""

    library: Library
    version: Version
    line: int
    quote: str


# Each pattern identifies the library's version with certainty: a package, an image tag, a variable of an image, a
# banner. Before it come words of which a text must contain one: most texts contain none, and that check is cheap.
_PATTERNS: tuple[tuple[Library, tuple[str, ...], str], ...] = (
    ("torch", ("orch version:",), r"\b[Pp]y[Tt]orch version: ?(2\.\d{1,2}\.\d{1,2})"),  # torch.utils.collect_env
    ("torch", ("torch==2.",), r"(?<![\w-])torch==(2\.\d{1,2}(?:\.\d{1,2})?)"),
    # pip list, dist-info
    ("torch", ("torch ", "torch-2."), r"(?<![\w-])torch(?: {1,40}|-)(2\.\d{1,2}\.\d{1,2})(?=[+\s.\"'-]|$)"),
    (
        "torch",
        ("torch.__version__", "torch_version", "PYTORCH_VERSION"),
        r"\b(?:torch\.__version__|torch_version|PYTORCH_VERSION)\W{1,6}(2\.\d{1,2}\.\d{1,2})",
    ),
    ("torch", ("pytorch/pytorch:2.",), r"\bpytorch/pytorch:(2\.\d{1,2}\.\d{1,2})-"),
    ("nccl", ("NCCL version",), r"\bNCCL version[ :]{1,3}(2\.\d{1,2}\.\d{1,2})"),
    ("nccl", ("cu1",), r"(?<![\w-])nvidia[-_]nccl[-_]cu1\d(?:==| {1,40}|-)(2\.\d{1,2}\.\d{1,2})"),
)
_SAID = [(library, words, re.compile(pattern)) for library, words, pattern in _PATTERNS]


def versions_in(text: str) -> Iterator[VersionSeen]:
    """Find the first version of each library that a text names."""
    libraries: tuple[Library, ...] = ("torch", "nccl")
    for library in libraries:
        patterns = (pattern for of, words, pattern in _SAID if of == library and any(word in text for word in words))
        found = [match for pattern in patterns if (match := pattern.search(text))]
        if found:
            first = min(found, key=lambda match: match.start())
            line = text.count("\n", 0, first.start()) + 1
            yield VersionSeen(library, Version.of(first[1]), line, first[0][:200])


@dataclass(frozen=True)
class Versions:
    """The versions in use; None if unknown."""

    torch: Version | None = None
    nccl: Version | None = None

    def of(self, library: Library | None) -> Version | None:
        """The version of a library in use; None if unknown."""
        return self.torch if library == "torch" else self.nccl if library == "nccl" else None
