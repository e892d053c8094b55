"""A probe: declared once, it is a sub-command, an MCP tool and a name that playbooks use.

Three steps, each testable alone: `capture` asks a host and keeps raw material, `parse` turns it into rows of
the evidence store, `analyse` turns the merged store into findings. Only `capture` touches the world.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, Field, JsonValue

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Diagnosis, Finding, Truncation
from ddx_tools.sources.host import Host
from ddx_tools.sources.kinds import Recogniser
from ddx_tools.sources.raw import Batches, Raw, Rows

PATH: dict[str, JsonValue] = {"format": "path"}
"""The `json_schema_extra` of an argument, beside `target`, that names a file or directory: a server checks what it
names before the probe sees it."""


class ProbeArgs(BaseModel, extra="forbid"):
    """Arguments of a probe. Nothing keeps a "current incident": every call says what it is about."""

    target: list[str] = Field(
        default_factory=list,
        description="What to look at: a pid (of a launcher or any rank), or paths of files and directories. "
        "Empty: the distributed job on this host.",
    )

    @property
    def paths(self) -> list[str]:
        """What of the target lies in files."""
        return [item for item in self.target if not item.isdigit()]

    @property
    def pids(self) -> list[str]:
        """What of the target runs."""
        return [item for item in self.target if item.isdigit()]


ArgsT = TypeVar("ArgsT", bound=ProbeArgs)


@dataclass(frozen=True)
class Later:
    """The function `module:name`, imported when it is first called: commands are listed before any is used."""

    place: str

    def __call__(self, *given: Any) -> Any:
        """What the function returns."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)(*given)


@dataclass(frozen=True)
class Export:
    """A file for another program that a probe can make of its rows."""

    help: str
    """What it is, and what opens it."""
    write: Callable[[Store, Sequence[Finding]], Iterator[bytes]]
    """The file in pieces, from the merged rows and the findings about them."""


@dataclass(frozen=True)
class Probe(Generic[ArgsT]):
    """The one declaration of a probe."""

    id: str
    """snake_case; the command line shows it with hyphens."""
    title: str
    description: str
    """For a person's `--help` and for a model that looks for a tool: what it answers, in the words people use."""
    args: type[ArgsT]
    capture: Callable[[Host, ArgsT], Raw]
    parse: Callable[[Raw], Rows | Batches]
    analyse: Callable[[Store], list[Finding]]
    read_only: bool = True
    sends_traffic: bool = False
    """Whether it talks to other hosts."""
    shell_only: frozenset[str] = frozenset()
    """Arguments that the command line alone offers: they name a program to start or a place to write to, or set
    what a model has no use for."""
    rests_on: tuple[str, ...] = ()
    """Tables without which there is nothing to find or to show: where all of them are empty, nobody imports what would
    look at them."""
    table: str | Callable[[Store], list[dict[str, Any]]] = ""
    """The rows that a person wants to see beside the findings, the most telling first: a query over the evidence
    store or, where a query cannot say it, a function of it."""
    most_rows: int = 100
    """So many of them are shown."""
    rest: str = "keep the material (--save BUNDLE) and name fewer ranks or files"
    """How to see those that are not."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Arguments as one types them, and what they do."""
    kinds: tuple[str, ...] = ()
    """The kinds of the user's files it takes (`ddx_tools.sources.kinds`, `ddx_tools.model.files.kinds`)."""
    recognises: Mapping[str, Recogniser] = field(default_factory=dict)
    """For kinds of texts that only this probe can tell: what says whether a text is one, by its name and beginning."""
    performs: Callable[[ArgsT, Callable[[str, Path], Diagnosis]], Path] | None = None
    """What this machine does for the probe where that itself investigates. It gets the probe's arguments and what
    diagnoses a pid or a directory and keeps the bundle at a path; it returns the directory that it wrote."""
    about_files: frozenset[str] = frozenset()
    """Arguments that are about brought files alone."""
    explain: Callable[[str], list[str]] | None = None
    """What a name means that the probe knows, in lines: `--explain NAME` of the command, which looks at nothing."""
    exports: Mapping[str, Export] = field(default_factory=dict)
    """Files it can write: option of the command (snake_case) to what it writes."""

    def shown(self, store: Store) -> tuple[list[dict[str, Any]], list[Truncation]]:
        """Its table, cut to what one can read, and what was left out."""
        if not self.table or not store.holds_any(self.rests_on):
            return [], []
        rows = store.query(self.table) if isinstance(self.table, str) else self.table(store)
        cut = [Truncation(shown=self.most_rows, total=len(rows), how=self.rest)] if len(rows) > self.most_rows else []
        return rows[: self.most_rows], cut

    @property
    def command(self) -> str:
        """The name on the command line."""
        return self.id.replace("_", "-")
