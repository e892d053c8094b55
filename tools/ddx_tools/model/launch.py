"""Models of environments and launch commands for analyses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from ddx_tools.model.diagnosis import Evidence
from ddx_tools.model.versions import Versions

Kind = Literal["process", "listing", "manifest", "script", "text"]
"""process: from a live process; listing: printed by one; manifest: declared for a container; script: set by a shell
script; text: set for a command quoted in a log or in notes."""


@dataclass(frozen=True)
class Value:
    """A variable in one environment, with its value and where it is set."""

    name: str
    value: str | None
    """None: set, but to an unknown value."""
    shown: str
    certain: bool = True
    exported: bool = True
    """False: assigned in a script but not passed on to the programs it starts."""
    source: str = ""
    line: int | None = None
    on_each_host: bool = False
    """Set by a command's shell that runs on every host, so `$(hostname)` differs on each."""

    @property
    def evidence(self) -> Evidence:
        """Evidence that quotes this variable as `NAME=value`, with the file and line that set it."""
        return Evidence(source=self.source, line=self.line, quote=f"{self.name}={self.shown}"[:200])


@dataclass(frozen=True)
class Option:
    """An option of a command, or a directive of a batch script."""

    tool: str
    name: str
    value: str | None
    text: str
    source: str = ""
    line: int | None = None

    @property
    def number(self) -> int | None:
        """The value as an integer; None if it is not one."""
        return int(self.value) if self.value and self.value.isascii() and self.value.isdigit() else None

    @property
    def evidence(self) -> Evidence:
        """Evidence that quotes this option as written, with its file and line."""
        return Evidence(source=self.source, line=self.line, quote=self.text[:200])


@dataclass
class Layer:
    """One program within a launch command, with its options."""

    tool: str
    program: str = ""
    options: list[Option] = field(default_factory=list)
    source: str = ""
    line: int | None = None

    def option(self, *names: str) -> Option | None:
        """The last occurrence of any of these options; None if there is none."""
        return next((option for option in reversed(self.options) if option.name in names), None)

    @property
    def evidence(self) -> Evidence:
        """Evidence that quotes this program with its options, with its file and line.

        For a container command, only the longest option or name is quoted.
        """
        words = [self.tool if self.tool != "program" else self.program, *(o.text for o in self.options)]
        # For a container command, its image and verb are left out because the words are not adjacent.
        text = max(words, key=len) if self.tool in ("docker", "podman") else " ".join(words)
        return Evidence(source=self.source, line=self.line, quote=text[:200])


@dataclass
class Launch:
    """A launch command as its programs, outermost first."""

    layers: list[Layer]
    certain: bool = True

    def layer(self, *tools: str) -> Layer | None:
        """The innermost layer that is one of these tools; None if there is none."""
        return next((layer for layer in reversed(self.layers) if layer.tool in tools), None)


@dataclass
class Environment:
    """The variables of one process, container or script, and the commands of a script."""

    id: str
    kind: Kind
    label: str = ""
    whole: bool = False
    """It is complete: variables not in it are not set."""
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
        """The effective value of a variable: the last one that is passed on."""
        return next((value for value in reversed(self.values) if value.name == name and value.exported), None)

    def text(self, name: str) -> str | None:
        """The text that a variable is set to; None if unset or unknown."""
        found = self.get(name)
        return found.value if found and found.certain else None

    def number(self, name: str) -> int | None:
        """A variable's value as an integer; None if it is not one."""
        text = (self.text(name) or "").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def is_unset(self, name: str) -> bool:
        """Whether nothing sets a variable here; if the environment is incomplete, the listing may only lack it."""
        return not any(value.name == name for value in self.values)

    def names(self) -> Iterator[str]:
        """The names of its variables, each once."""
        return iter(dict.fromkeys(value.name for value in self.values))
