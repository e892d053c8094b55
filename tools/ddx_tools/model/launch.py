"""Environments and launches as the analysis sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ddx_tools.model.diagnosis import Evidence
from ddx_tools.model.versions import Versions

Kind = Literal["process", "listing", "manifest", "script", "text"]
"""process: of a live process; listing: printed by one; manifest: declared for a container; script: set by a shell
script; text: set for a command that stands in a log or in notes."""


@dataclass(frozen=True)
class Value:
    """A variable as one environment has it."""

    name: str
    value: str | None
    """None: set, and nobody knows to what."""
    shown: str
    certain: bool = True
    exported: bool = True
    """False: assigned in a script and not handed on to the programs it starts."""
    source: str = ""
    line: int | None = None
    on_each_host: bool = False
    """Set by the shell of a command that runs on every host, so that `$(hostname)` is another one on each."""

    @property
    def evidence(self) -> Evidence:
        """Where a reader can look."""
        return Evidence(source=self.source, line=self.line, quote=f"{self.name}={self.shown}"[:200])


@dataclass(frozen=True)
class Option:
    """An option of a command or a directive of a batch script."""

    tool: str
    name: str
    value: str | None
    text: str
    source: str = ""
    line: int | None = None

    @property
    def number(self) -> int | None:
        """The value, if it is a whole number."""
        return int(self.value) if self.value and self.value.isascii() and self.value.isdigit() else None

    @property
    def evidence(self) -> Evidence:
        """Where a reader can look."""
        return Evidence(source=self.source, line=self.line, quote=self.text[:200])


@dataclass
class Layer:
    """One program of a command."""

    tool: str
    program: str = ""
    options: list[Option] = field(default_factory=list)
    source: str = ""
    line: int | None = None

    def option(self, *names: str) -> Option | None:
        """The last of these options."""
        return next((option for option in reversed(self.options) if option.name in names), None)

    @property
    def evidence(self) -> Evidence:
        """Where a reader can look."""
        words = [self.tool if self.tool != "program" else self.program, *(o.text for o in self.options)]
        # Of a command of a container its image and its verb are left out: the words do not follow one another.
        text = max(words, key=len) if self.tool in ("docker", "podman") else " ".join(words)
        return Evidence(source=self.source, line=self.line, quote=text[:200])


@dataclass
class Launch:
    """One command, outermost program first."""

    layers: list[Layer]
    certain: bool = True

    def layer(self, *tools: str) -> Layer | None:
        """The innermost layer of one of these tools."""
        return next((layer for layer in reversed(self.layers) if layer.tool in tools), None)


@dataclass
class Environment:
    """The variables of one process, container or script, and the commands of a script."""

    id: str
    kind: Kind
    label: str = ""
    whole: bool = False
    """What is not in it is not set."""
    host: str | None = None
    rank: int | None = None
    job: str | None = None
    source: str = ""
    values: list[Value] = field(default_factory=list)
    batch: Layer = field(default_factory=lambda: Layer("sbatch"))
    """Directives of the batch script."""
    launches: list[Launch] = field(default_factory=list)
    versions: Versions = field(default_factory=Versions)

    def get(self, name: str) -> Value | None:
        """The value that holds in the end: the last one that is handed on."""
        return next((value for value in reversed(self.values) if value.name == name and value.exported), None)

    def text(self, name: str) -> str | None:
        """What a variable is set to, if that is known."""
        found = self.get(name)
        return found.value if found and found.certain else None

    def number(self, name: str) -> int | None:
        """The same as a whole number."""
        text = (self.text(name) or "").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def is_unset(self, name: str) -> bool:
        """Nothing sets it here; in an incomplete environment it may only be missing from the listing."""
        return not any(value.name == name for value in self.values)

    def names(self) -> Iterator[str]:
        """Its variables, each once."""
        return iter(dict.fromkeys(value.name for value in self.values))
