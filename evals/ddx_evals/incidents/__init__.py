"""Incidents: recorded or user-supplied material, the truth about it, and the views cut from it."""

from ddx_evals.incidents.incident import (
    Incident,
    IncidentError,
    chosen_views,
    incident_directories,
    load_incident,
    named_incidents,
    truth_of,
)
from ddx_evals.incidents.parallel import in_parallel
from ddx_evals.incidents.truth import CANARY, Culprits, Fact, Place, Provenance, RightAnswer, Truth, TruthLayout, View
from ddx_evals.incidents.views import staged, staged_of, unpacked

__all__ = [
    "CANARY",
    "Culprits",
    "Fact",
    "Incident",
    "IncidentError",
    "Place",
    "Provenance",
    "RightAnswer",
    "Truth",
    "TruthLayout",
    "View",
    "chosen_views",
    "in_parallel",
    "incident_directories",
    "load_incident",
    "named_incidents",
    "staged",
    "staged_of",
    "truth_of",
    "unpacked",
]
