"""The table of variables: what deserves a word first."""

from __future__ import annotations

from typing import Any

from ddx_tools.environment.findings import judged
from ddx_tools.environment.knowledge import variables
from ddx_tools.environment.rows import environments
from ddx_tools.environment.versions import Versions
from ddx_tools.store import Store


def variable_rows(store: Store) -> list[dict[str, Any]]:
    """Variable, value, who, verdict: what deserves a word first."""
    verdicts: dict[tuple[str, str, str], list[str]] = {}
    for environment, word in judged(store):
        verdicts.setdefault((environment.id, word.name, word.shown), []).append(word.problem)
    shown: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in store.query("SELECT * FROM env_values ORDER BY name, rank NULLS LAST, label, source_line"):
        verdict = ", ".join(dict.fromkeys(verdicts.get((row["environment"], row["name"], row["shown"]), [])))
        key = (row["name"], row["shown"], verdict)
        known = shown.setdefault(
            key, {"variable": row["name"], "value": row["shown"], "who": [], "verdict": verdict, "ranks": []}
        )
        (known["ranks"] if row["rank"] is not None else known["who"]).append(
            row["rank"] if row["rank"] is not None else row["label"]
        )
    versions = next((one.versions for one in environments(store)), Versions())
    ordered = sorted(shown.values(), key=lambda row: (not row["verdict"], row["variable"], row["value"]))
    return [
        {
            "variable": row["variable"],
            "value": row["value"],
            "ranks": sorted(set(row["ranks"])) or None,
            "who": ", ".join(dict.fromkeys(row["who"])) or None,
            "verdict": row["verdict"],
            "default": _default(row["variable"], versions),
        }
        for row in ordered
    ]


def _default(name: str, versions: Versions) -> str | None:
    """In the version that runs, if it is known or does not matter."""
    known = variables().get(name)
    return known.default_in(versions.of(known.library)) if known else None
