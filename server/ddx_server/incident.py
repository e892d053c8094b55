"""What `ddx run` keeps when a job fails or stalls: a bundle beside its logs."""

from __future__ import annotations

from pathlib import Path

from ddx_server.run.command import Incident


def capture_incident(incident: Incident) -> Path:
    """Capture the live job if it stalls, or what it left if it ended. Returns the bundle's path."""
    from ddx_tools.investigate import investigate

    bundle = _free_name(incident.run_dir)
    target = str(incident.launcher_pid) if incident.kind == "stalled" else str(incident.run_dir)
    investigate([target], save=bundle)
    return bundle


def _free_name(run_dir: Path) -> Path:
    """`incident-1.tar.zst`, or the next number that is free: a job may stall several times."""
    number = 1
    while (run_dir / f"incident-{number}.tar.zst").exists():
        number += 1
    return run_dir / f"incident-{number}.tar.zst"
