"""The input of a baseline, a case, and its output, an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ddx_evals.incidents import Incident, Truth, View
from ddx_evals.incidents.validation import texts_below
from ddx_evals.incidents.views import printed
from ddx_evals.scoring import Replayed, Transcript
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.result import Investigation
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.sources.bundle import Bundle, is_bundle


@dataclass(frozen=True)
class Case:
    """One view of one incident, with its material staged."""

    incident: Incident
    view: View
    material: Path
    store: Store | None = None
    """The store for the rows, if they are needed later."""

    @property
    def truth(self) -> Truth:
        """The truth, only for the oracle and the score."""
        return self.incident.truth

    @cached_property
    def found(self) -> Investigation:
        """The probes' findings in the material and the user's words, computed once."""
        found = investigate([str(self.material)], notes=[self.truth.prompt], store=self.store)
        found.not_similar = {self.truth.url}
        return found

    @cached_property
    def replayed(self) -> Replayed:
        """The text that an answer may quote."""
        return Replayed.of(self.material, self.found, [self.truth.prompt])

    @cached_property
    def texts(self) -> dict[str, str]:
        """The raw files by path, as text."""
        if self._is_plain:
            return dict(texts_below(self.material))
        with Bundle(self.material) as bundle:
            return {name: text for name, text in texts_below(bundle.directory) if name.startswith("raw/")}

    @cached_property
    def logs(self) -> dict[str, str]:
        """The job's output from a bundle, or all of the user's files."""
        if self._is_plain:
            return self.texts
        with Bundle(self.material) as bundle:
            return {entry.path: self.texts[entry.path] for entry in printed(bundle).values() if entry.path}

    @property
    def _is_plain(self) -> bool:
        return self.material.is_dir() and not is_bundle(self.material)


class Answer(NamedTuple):
    """A diagnosis, and the calls made on the way to it."""

    diagnosis: Diagnosis
    transcript: Transcript = Transcript()


Baseline = Callable[[Case], Answer]
"""Answers a case without a model."""
