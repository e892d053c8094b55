"""A probe: one declaration makes it a sub-command, an MCP tool and a name that playbooks can use.

It has three steps, each testable by itself: `capture` asks a host and keeps raw material, `parse` turns it into rows of
the evidence store, `analyse` turns the merged store into findings. Only `capture` touches the outside world.
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
"""The `json_schema_extra` of an argument other than `target` that names a file or directory: a server checks the path
before the probe sees it."""


class ProbeArgs(BaseModel, extra="forbid"):
    """Arguments of a probe. There is no stored "current incident": every call names its target."""

    target: list[str] = Field(
        default_factory=list,
        description="What to look at: a pid (of a launcher or any rank), or paths of files and directories. "
        "Empty: the distributed job on this host.",
    )

    @property
    def paths(self) -> list[str]:
        """The items of the target that are file or directory paths."""
        return [item for item in self.target if not item.isdigit()]

    @property
    def pids(self) -> list[str]:
        """The items of the target that are process ids."""
        return [item for item in self.target if item.isdigit()]


ArgsT = TypeVar("ArgsT", bound=ProbeArgs)


@dataclass(frozen=True)
class Later:
    """A stand-in for the function `module:name`: the module is imported on the first call, not when commands are
    listed."""

    place: str

    def __call__(self, *given: Any) -> Any:
        """Import the function, call it and return its result."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)(*given)


@dataclass(frozen=True)
class Export:
    """A file for another program that a probe can write from its rows."""

    help: str
    """What the file is, and what opens it."""
    write: Callable[[Store, Sequence[Finding]], Iterator[bytes]]
    """Yields the file in pieces, from the merged rows and the findings about them."""


@dataclass(frozen=True)
class Probe(Generic[ArgsT]):
    """The declaration of a probe: its arguments, its three steps, and how its rows are shown."""

    id: str
    """snake_case; the command line shows it with hyphens."""
    title: str
    description: str
    """What the probe answers, in the words people use: for `--help`, and for a model that looks for a tool."""
    args: type[ArgsT]
    capture: Callable[[Host, ArgsT], Raw]
    parse: Callable[[Raw], Rows | Batches]
    analyse: Callable[[Store], list[Finding]]
    read_only: bool = True
    sends_traffic: bool = False
    """Whether it talks to other hosts."""
    shell_only: frozenset[str] = frozenset()
    """Arguments that only the command line offers: they name a program to start or a place to write to, or set
    something a model does not need."""
    rests_on: tuple[str, ...] = ()
    """Tables that the findings and the shown rows come from: if all are empty, the modules that would read them are not
    imported."""
    table: str | Callable[[Store], list[dict[str, Any]]] = ""
    """The rows to show a person beside the findings, the most telling first: a query over the evidence store or, where
    a query is not enough, a function of the store."""
    most_rows: int = 100
    """The maximum number of rows shown."""
    rest: str = "keep the material (--save BUNDLE) and name fewer ranks or files"
    """How to see the rows that are not shown."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Arguments as typed on the command line, and what each example does."""
    kinds: tuple[str, ...] = ()
    """The kinds of user files it takes (`ddx_tools.sources.kinds`, `ddx_tools.model.files.kinds`)."""
    recognises: Mapping[str, Recogniser] = field(default_factory=dict)
    """Per kind of text that only this probe recognises, a function of name and beginning that says whether a text is
    one."""
    performs: Callable[[ArgsT, Callable[[str, Path], Diagnosis]], Path] | None = None
    """For a probe that itself investigates on this machine: the function that does so. It takes the probe's arguments
    and a function that diagnoses a pid or a directory and keeps the bundle at a path; it returns the directory it
    wrote."""
    about_files: frozenset[str] = frozenset()
    """Arguments that apply only to submitted files."""
    explain: Callable[[str], list[str]] | None = None
    """The lines that `--explain NAME` prints about a name the probe knows; the command then captures nothing."""
    exports: Mapping[str, Export] = field(default_factory=dict)
    """The files it can write, keyed by command option (snake_case)."""

    def shown(self, store: Store) -> tuple[list[dict[str, Any]], list[Truncation]]:
        """Return the rows to show, cut to `most_rows`, and a note of how many were left out."""
        if not self.table or not store.holds_any(self.rests_on):
            return [], []
        rows = store.query(self.table) if isinstance(self.table, str) else self.table(store)
        cut = [Truncation(shown=self.most_rows, total=len(rows), how=self.rest)] if len(rows) > self.most_rows else []
        return rows[: self.most_rows], cut

    @property
    def command(self) -> str:
        """The probe's name on the command line."""
        return self.id.replace("_", "-")
