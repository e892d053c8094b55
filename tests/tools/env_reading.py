"""What the tests of the probe `env` share: findings of files and of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddx_tools.evidence.store import Store
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.probes.env.probe import PROBE, EnvArgs
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

FIXTURES = Path(__file__).parents[1] / "fixtures" / "env"
LOUD = (Severity.WARNING, Severity.FAILURE)


def captured(*paths: Path) -> Raw:
    """One capture of files."""
    return PROBE.capture(LocalHost("unknown"), EnvArgs(target=[str(path) for path in paths]))


def findings_of(*paths: Path) -> list[Finding]:
    """What the probe says of files."""
    with Store() as store:
        store.insert(PROBE.parse(captured(*paths)))
        return PROBE.analyse(store)


def table_of(*paths: Path) -> list[dict[str, Any]]:
    """The table that a person sees."""
    assert callable(PROBE.table)
    with Store() as store:
        store.insert(PROBE.parse(captured(*paths)))
        return PROBE.table(store)


def said_of(directory: Path, text: str, name: str = "job.env") -> list[Finding]:
    """What the probe says of one file with this text."""
    file = directory / name
    file.write_text(text, encoding="utf-8")
    return findings_of(file)


def problems(findings: list[Finding]) -> dict[str, str]:
    """{variable: problem} of the suspicious settings; for several problems the last."""
    return {f.attributes["variable"]: f.attributes["problem"] for f in findings if f.code == "config.suspicious"}


def meanings(findings: list[Finding]) -> dict[str, Finding]:
    """Launch settings by meaning."""
    return {f.attributes["meaning"]: f for f in findings if f.code == "launch.setting"}


def loud(findings: list[Finding]) -> list[str]:
    """Summaries of warnings and failures."""
    return [finding.summary for finding in findings if finding.severity in LOUD]
