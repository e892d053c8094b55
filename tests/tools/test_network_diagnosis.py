"""What a try of the network changes in a diagnosis that the job's log leaves open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from network_lan import OPEN, REFUSED, SILENT, Lan

from ddx_tools.investigation.run import investigate
from ddx_tools.investigation.session.plan import Step
from ddx_tools.investigation.single_probe import run_probe
from ddx_tools.model.diagnosis import Diagnosis, Verdict
from ddx_tools.probes.network.probe import PROBE

LOG = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 3000ms while trying to connect to "
    "(10.88.0.2, 29500).\n"
)
"""Printed by torch 2.13 when packets are dropped, and when nobody listens."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "job.log"
    file.write_text(LOG)
    return file


def tried(tmp_path: Path, lan: Lan) -> Path:
    """The bundle of a try."""
    step = Step(PROBE, {"target": [], "peer": ["10.88.0.2"], "port": [29500]})
    run_probe(step, save=tmp_path / "tried", machine=lambda _: lan)
    return tmp_path / "tried"


def diagnosed(*paths: Path) -> Diagnosis:
    return investigate([str(path) for path in paths]).diagnose()


def probability(diagnosis: Diagnosis, cause: str) -> float:
    return next((one.probability for one in diagnosis.causes if one.id == cause), 0.0)


def test_the_log_alone_asks_for_a_try_of_the_address_that_it_names(log: Path) -> None:
    diagnosis = diagnosed(log)
    assert diagnosis.verdict is Verdict.UNDECIDED
    assert diagnosis.next_check is not None
    assert (diagnosis.next_check.probe, diagnosis.next_check.args) == (
        "network",
        {"peer": "10.88.0.2", "port": "29500"},
    )
    PROBE.args.model_validate(diagnosis.next_check.args).check()


def test_silence_decides_for_the_firewall(log: Path, tmp_path: Path) -> None:
    diagnosis = diagnosed(log, tried(tmp_path, Lan(ports={29500: SILENT})))
    assert (diagnosis.verdict, diagnosis.causes[0].id) == (Verdict.DIAGNOSED, "firewall-or-unreachable")
    assert diagnosis.next_check is None or diagnosis.next_check.probe != "network"


def test_a_refusal_speaks_against_the_firewall(log: Path, tmp_path: Path) -> None:
    before, after = diagnosed(log), diagnosed(log, tried(tmp_path, Lan(ports={29500: REFUSED})))
    cause = "firewall-or-unreachable"
    assert after.causes[0].id != cause
    assert probability(after, cause) < probability(before, cause)


def test_what_somebody_saw_with_nc_counts_as_much(log: Path, tmp_path: Path) -> None:
    pasted = tmp_path / "nc.txt"
    pasted.write_text("nc: connect to 10.88.0.2 port 29500 (tcp) timed out: Operation now in progress\n")
    assert diagnosed(log, pasted).causes[0].id == "firewall-or-unreachable"


def follow_up(log: Path, tmp_path: Path, lan: Lan) -> Diagnosis:
    """The diagnosis of a log, kept as a bundle whose host had also been asked about the network."""
    investigate([str(log)], tmp_path / "kept")
    kept = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    asked = json.loads((tried(tmp_path, lan) / "manifest.json").read_text())
    shutil.copytree(tmp_path / "tried" / "raw", tmp_path / "kept" / "raw", dirs_exist_ok=True)
    kept["hosts"] += asked["hosts"]
    kept["journal"] += asked["journal"]
    (tmp_path / "kept" / "manifest.json").write_text(json.dumps(kept))
    return diagnosed(tmp_path / "kept")


def test_a_bundle_that_holds_the_answer_to_the_next_check_is_asked_for_it(log: Path, tmp_path: Path) -> None:
    diagnosis = follow_up(log, tmp_path, Lan(ports={29500: SILENT}))
    assert (diagnosis.verdict, diagnosis.causes[0].id) == (Verdict.DIAGNOSED, "firewall-or-unreachable")
    assert any("timed out" in claim.quote for claim in diagnosis.evidence)


def test_an_answer_to_another_question_settles_nothing(log: Path, tmp_path: Path) -> None:
    log.write_text(LOG.replace("10.88.0.2", "10.88.0.3"))
    diagnosis = follow_up(log, tmp_path, Lan(ports={29500: SILENT}))
    assert diagnosis.verdict is Verdict.UNDECIDED
    assert diagnosis.next_check and diagnosis.next_check.probe == "network"
    assert diagnosis.missing == diagnosed(log).missing, "what nobody asked is no gap"


def test_a_healthy_way_names_no_cause(tmp_path: Path) -> None:
    assert not diagnosed(tried(tmp_path, Lan(ports={29500: OPEN}))).causes
