"""A server's state between calls: its limits, and the incidents that were captured, opened or pasted.

    <incidents>/<id>/incident.json        what it is and where its material is
    <incidents>/<id>/bundle/              the material, unless the user passed a bundle, which stays in place
    <incidents>/<id>/diagnosis-<n>.json   a diagnosis that was reported about it
    <incidents>/<id>/findings.json        findings that were submitted about it

Everything is on disk: ids stay valid after a restart, and there is no shared "current" incident.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddx_server.serve.config import ServeConfig
from ddx_server.serve.roots import below_roots, exists, followed, is_below
from ddx_tools.model.errors import NotPermitted, UsageError

if TYPE_CHECKING:
    from ddx_tools.diagnosis.submitted import HandedIn

RECORDED_ID = "inc-recorded"
"""The id of the incident of a server that answers from a recording."""

_ID = re.compile(r"inc-[a-z0-9-]{1,40}")
_RECORD, _BUNDLE = "incident.json", "bundle"
HANDED_IN = "findings.json"
"""The name of the file with the findings submitted about an incident."""
_MOST_ITEMS = 64
_MOST_DIGITS = 10
_MOST_LISTED = 50


class OpenIncident(BaseModel):
    """`incident.json`: one incident that calls may name by its id."""

    model_config = ConfigDict(extra="forbid")

    id: str
    kind: Literal["captured", "files", "text", "bundle", "recorded"]
    created: Annotated[str, Field(pattern=r"^[0-9T:+-]{0,25}$")]
    """UTC, ISO 8601, to the second."""
    about: Annotated[list[str], Field(max_length=_MOST_ITEMS)]
    """What it was made from: pids, paths; empty for the job on this host."""
    material: Path
    """The bundle that an investigation reads (plain files are possible if a recording is served)."""


class Workspace:
    """The limits of one server and its incidents. Safe to use from several threads: all state is on disk."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config

    def resolve(self, target: Sequence[str]) -> list[str]:
        """Resolve a target of pids, paths below the roots and incident ids into an investigation's target.

        Raises UsageError or NotPermitted, which say what to name instead.
        """
        if len(target) > _MOST_ITEMS:
            raise UsageError(f"a target of {len(target)} items", f"At most {_MOST_ITEMS}: name their directory.")
        if not all(target):
            raise UsageError("a target is empty", "Name a pid, a path or an incident; omit it for the job here.")
        if self.config.recorded is not None:
            return self._recorded(target)
        return [self._item(item) for item in target]

    def place(self, path: str) -> str:
        """Resolve a path argument other than the target: a path below the roots, or an incident's material.

        Raises UsageError or NotPermitted, which say what to name instead.
        """
        (resolved,) = self.resolve([path])
        if _is_pid(resolved):
            return str(below_roots(path, self.config.roots))
        return resolved

    def is_live(self, target: Sequence[str]) -> bool:
        """Whether a resolved target means running processes."""
        return all(map(_is_pid, target))

    def incident(self, incident_id: str) -> OpenIncident:
        """An incident by its id. Raises UsageError if there is none."""
        found = self._read(incident_id)
        if found is None:
            known = ", ".join(incident.id for incident in self.incidents()[:8]) or "none yet"
            raise UsageError(
                f"there is no incident {incident_id[:60]!r} here",
                f"Known: {known}. `open_incident` (files, pasted text) and `capture_incident` (a live job) return one.",
            )
        return found

    def incidents(self) -> list[OpenIncident]:
        """The 50 newest incidents, newest first."""
        if self.config.recorded is not None:
            return [self.incident(RECORDED_ID)]
        if not self.config.incidents.is_dir():
            return []
        names = sorted((path.name for path in self.config.incidents.iterdir()), reverse=True)
        return [found for name in names[:_MOST_LISTED] if (found := self._read(name))]

    def add(
        self, kind: Literal["captured", "files", "text"], about: Sequence[str], fill: Callable[[Path], None]
    ) -> OpenIncident:
        """Create an incident whose bundle `fill` writes to the path it is given. A failure leaves nothing behind."""
        directory, created = self._new_directory()
        try:
            fill(directory / _BUNDLE)
            incident = OpenIncident(
                id=directory.name, kind=kind, created=created, about=list(about), material=directory / _BUNDLE
            )
            self._write(directory, incident)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return incident

    def refer(self, bundle: Path) -> OpenIncident:
        """Create an incident that refers to a bundle in place."""
        directory, created = self._new_directory()
        incident = OpenIncident(id=directory.name, kind="bundle", created=created, about=[str(bundle)], material=bundle)
        self._write(directory, incident)
        return incident

    def report_file(self, incident_id: str) -> Path:
        """A new file name for a diagnosis: beside its incident's bundle, or without an incident in their directory."""
        directory = self._place()
        if incident_id:
            directory /= self.incident(incident_id).id
            directory.mkdir(exist_ok=True, mode=0o700)
        number = 1
        while True:
            file = directory / f"diagnosis-{number}.json"
            try:
                file.touch(mode=0o600, exist_ok=False)
            except FileExistsError:
                number += 1
            else:
                return file

    def handed_in(self, target: Sequence[str]) -> list[HandedIn]:
        """The findings that were submitted about the incident of a target."""
        from ddx_tools.diagnosis.submitted import read_handed_in

        kept = self._kept_findings(target)
        return read_handed_in(kept.read_bytes()) if kept and kept.is_file() else []

    def hand_in(self, target: Sequence[str], one: HandedIn) -> int:
        """Save a submitted finding beside the incident's bundle, if the target is an incident; return their number."""
        from pydantic import TypeAdapter

        from ddx_tools.diagnosis.submitted import HandedIn

        every = [*self.handed_in(target), one]
        if kept := self._kept_findings(target):
            kept.parent.mkdir(exist_ok=True, mode=0o700)
            kept.write_bytes(TypeAdapter(list[HandedIn]).dump_json(every, indent=1))
        return len(every)

    def _kept_findings(self, target: Sequence[str]) -> Path | None:
        ids = [item for item in target if _ID.fullmatch(item)]
        if self.config.recorded is not None:
            ids = [RECORDED_ID]
        return self._place() / ids[0] / HANDED_IN if len(ids) == 1 else None

    def sources(self, target: Sequence[str], origins: Mapping[str, str]) -> Callable[[str], str]:
        """A function that names the source of evidence: for an incident, its own file, which can be read again.

        For material that was not saved, it gives the origin from `origins`, as the investigation found it.
        """
        if self.config.recorded is not None or any(_ID.fullmatch(item) for item in target):
            return lambda source: source

        def origin(source: str) -> str:
            from ddx_tools.investigation.show.origins import origin_of

            return origin_of(source, origins) or source

        return origin

    def _recorded(self, target: Sequence[str]) -> list[str]:
        foreign = next((item for item in target if not _is_pid(item) and item != RECORDED_ID), None)
        if foreign is not None:
            raise NotPermitted(
                f"{foreign[:200]}: this server answers from one recorded incident and reads nothing else",
                "Leave the target empty (or name a pid from the recording).",
            )
        return [str(self.config.recorded)]

    def _item(self, item: str) -> str:
        if _is_pid(item):
            return item
        if _ID.fullmatch(item) and not (self.config.roots[0] / item).exists():
            return str(self.incident(item).material)
        return str(below_roots(item, self.config.roots))

    def _read(self, incident_id: str) -> OpenIncident | None:
        if self.config.recorded is not None:
            recorded = OpenIncident(
                id=RECORDED_ID, kind="recorded", created="", about=[], material=self.config.recorded
            )
            return recorded if incident_id == RECORDED_ID else None
        if not _ID.fullmatch(incident_id):
            return None
        own = self.config.incidents / incident_id
        try:
            # Another user's record may be a pipe, whose reader would wait forever.
            text = (own / _RECORD).read_text(encoding="utf-8") if (own / _RECORD).is_file() else ""
            incident = OpenIncident.model_validate_json(text)
        except (OSError, ValueError, ValidationError):
            return None
        # Others may be able to write the record: the path in it is checked like one that a client names.
        allowed = (own, *self.config.roots)
        return incident if incident.id == incident_id and _leads_below(incident.material, allowed) else None

    def _new_directory(self) -> tuple[Path, str]:
        now = dt.datetime.now(dt.UTC)
        directory = self._place() / f"inc-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        directory.mkdir(mode=0o700)
        return directory, now.isoformat(timespec="seconds")

    def _place(self) -> Path:
        """The directory for incidents. Raises UsageError if it cannot be created or written."""
        place = self.config.incidents
        try:
            place.mkdir(parents=True, mode=0o700)
            # A job's output does not belong in the repository that it was started from.
            (place / ".gitignore").write_text("*\n", encoding="utf-8")
        except FileExistsError:  # not created by us, and neither is its .gitignore or the target of a link there
            pass
        except OSError as error:
            raise _not_kept(place, error.strerror or str(error)) from error
        if not (place.is_dir() and os.access(place, os.W_OK)):
            raise _not_kept(place, "it is not a directory that this user may write to")
        return place

    def _write(self, directory: Path, incident: OpenIncident) -> None:
        from ddx_tools.redaction.structures import redact_value

        told = incident.model_copy(update={"about": redact_value(incident.about)})
        (directory / _RECORD).write_text(told.model_dump_json(indent=1), encoding="utf-8")


def _not_kept(place: Path, reason: str) -> UsageError:
    return UsageError(
        f"no incident can be saved in {place}: {reason}",
        "Start the server with a writable root, or with --incidents DIRECTORY.",
    )


def _is_pid(item: str) -> bool:
    return item.isascii() and item.isdigit() and len(item) <= _MOST_DIGITS


def _leads_below(path: Path, places: Sequence[Path]) -> bool:
    end = followed(path)
    return end is not None and exists(end) and is_below(end, places)
