"""An incident on disk: material that can be replayed, and the truth beside it.

<split>/<id>/bundle.tar.zst    an ordinary bundle; or
<split>/<id>/artifacts/        files as a user supplied them
<split>/<id>/truth.yaml        never shown to the scored system
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ddx_evals.incidents.truth import Truth, View
from ddx_tools.knowledge.load import YAMLError, load_yaml
from ddx_tools.knowledge.resources import incidents_dir
from ddx_tools.knowledge.validation import first_mistake
from ddx_tools.model.errors import UsageError

BUNDLE, ARTIFACTS, TRUTH = "bundle.tar.zst", "artifacts", "truth.yaml"

_OF_BROUGHT = ("url", "cause", "accept", "deciding_fact", "deciding_words", "deciding_lines", "determinable")
"""The scored fields of a thread's truth. The rest is for readers, and its `category` is not that of our pages."""


class IncidentError(UsageError):
    """A directory that is not an incident, or an invalid truth."""


@dataclass(frozen=True)
class Incident:
    """One incident of a split."""

    directory: Path
    truth: Truth

    @property
    def id(self) -> str:
        """Its name within the split."""
        return self.directory.name

    @property
    def split(self) -> str:
        """The split that it belongs to."""
        return self.directory.parent.name

    @property
    def material(self) -> Path:
        """The path of the bundle, or of the directory of files. Raises IncidentError if there is neither."""
        for name in (BUNDLE, ARTIFACTS):
            if (self.directory / name).exists():
                return self.directory / name
        raise IncidentError(f"{self.directory} has neither {BUNDLE} nor {ARTIFACTS}/")

    @property
    def views(self) -> list[View]:
        """The views for which the truth has a right answer."""
        return [view for view in View if view in self.truth.views]


def load_incident(directory: Path) -> Incident:
    """Load one incident. Raises IncidentError if its truth is invalid."""
    return Incident(directory, truth_of(directory))


def truth_of(directory: Path) -> Truth:
    """Load the truth of an incident. Raises IncidentError if it is invalid."""
    try:
        told = load_yaml((directory / TRUTH).read_text(encoding="utf-8"))
        if not isinstance(told, dict):
            raise IncidentError(f"{directory / TRUTH} is not a mapping")
        if (directory / ARTIFACTS).is_dir() or "provenance" not in told:
            told = _of_brought(told)
        return Truth.model_validate(told)
    except ValidationError as error:
        raise IncidentError(
            f"{directory / TRUTH}: {first_mistake(error)}", "`ddx_evals/incidents/truth.py` defines its format."
        ) from error
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise IncidentError(f"{directory}: {error}") from error


def _of_brought(told: Mapping[str, Any]) -> dict[str, Any]:
    scored = {name: told[name] for name in _OF_BROUGHT if name in told}
    right = {told.get("cause"), *(told.get("accept") or ())}
    scored["innocent"] = [cause for cause in told.get("tempting") or () if cause not in right]
    if "best_verdict" in told:
        full = {"verdict": told["best_verdict"], "check": told.get("deciding_words", "")}
        scored["views"] = {View.FULL: full}
    return scored


def truth_text(truth: Truth) -> str:
    """The text of a truth file."""
    return yaml.safe_dump(truth.model_dump(mode="json", exclude_defaults=True), sort_keys=False, width=120)


def incident_directories(places: Sequence[Path]) -> list[Path]:
    """The incidents in directories, each of which may itself be one. Raises IncidentError if there is none."""
    found = [truth.parent for place in places for truth in sorted(place.rglob(TRUTH))]
    if not found:
        raise IncidentError(
            f"no {TRUTH} below {', '.join(map(str, places))}", "Name an incident, a split, or a directory of splits."
        )
    return found


def named_incidents(names: Sequence[str]) -> list[Incident]:
    """The incidents of a split (`dev`), by split and id (`dev/0f3a`), or by path; without names, all that ship.

    Raises IncidentError for any other name.
    """
    places = [_place(name) for name in names] or [incidents_dir()]
    return [load_incident(directory) for directory in dict.fromkeys(incident_directories(places))]


def chosen_views(names: Sequence[str] | None) -> list[View]:
    """The views with these names, or all views. Raises UsageError for an unknown name."""
    if unknown := set(names or ()) - set(View):
        raise UsageError(f"there is no view {min(unknown)!r}", f"Views: {', '.join(View)}")
    return [View(name) for name in names] if names else list(View)


def _place(name: str) -> Path:
    shipped = incidents_dir() / name
    for place in (shipped, Path(name)):
        if place.is_dir():
            return place
    splits = sorted(path.name for path in incidents_dir().glob("*") if path.is_dir())
    raise IncidentError(
        f"there is no incident or split {name!r}",
        "List them: ddx evals list. Name an incident with its split, as in dev/9bb4e3; "
        f"splits: {', '.join(splits)}; or name a directory.",
    )
