"""Several jobs on one host, and hosts that do not answer: the text of an answer says which, whatever else it says."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ddx_server.render.diagnosis import render_diagnosis
from ddx_server.serve.diagnosis_payload import diagnosis_payload
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.show.jobs_of_hosts import headline_with_job, jobs_by_rank
from ddx_tools.model.diagnosis import (
    HOST_NOT_LOOKED_AT,
    Certainty,
    Claim,
    Diagnosis,
    Finding,
    Missing,
    Party,
    Severity,
    Suspect,
    SuspectEvent,
    Verdict,
)


def rows(host: str, job: str, script: str, ranks: Sequence[int]) -> list[dict[str, Any]]:
    command = f"/usr/bin/python -u {script} --steps 100"
    launcher = {"host": host, "job": job, "role": "launcher", "rank": None, "command": f"torchrun {script}"}
    return [launcher, *({**launcher, "role": "rank", "rank": rank, "command": command} for rank in ranks)]


def said(*jobs: list[dict[str, Any]], of: str | None = None, host: str = "node-1") -> str:
    """The headline of an answer that blames rank 1."""
    suspect = Suspect(ranks=[1], event=SuspectEvent.OUTSIDE, certainty=Certainty.SEEN, hosts=[host], says="")
    seen = Finding(code="rank.stopped", severity=Severity.FAILURE, ranks=[1], summary="", attributes={"job": of})
    answer = Diagnosis(verdict=Verdict.UNDECIDED, headline="Rank 1 is stopped", suspects=[suspect])
    with Store() as store:
        store.insert({"ranks": [row for job in jobs for row in job]})
        return headline_with_job(answer, jobs_by_rank(store), [seen] if of else [])


def test_the_job_is_named_where_a_host_has_several() -> None:
    one, other = (rows("node-1", f"torchrun:{pid}", f"/srv/{name}.py", [0, 1]) for pid, name in ((7, "a"), (9, "b")))
    assert said(one, other, of="torchrun:9") == "Rank 1 is stopped [job b.py (torchrun:9 on node-1)]"
    undecided = said(one, other)
    assert "one of the jobs a.py (torchrun:7 on node-1), b.py (torchrun:9 on node-1)" in undecided


def test_a_rank_that_only_one_of_the_jobs_has_tells_which_it_is() -> None:
    one, other = rows("node-1", "torchrun:7", "a.py", [0]), rows("node-1", "torchrun:9", "b.py", [0, 1])
    assert said(one, other).endswith("[job b.py (torchrun:9 on node-1)]")


def test_one_job_on_each_host_needs_no_name() -> None:
    one, other = rows("node-1", "torchrun:7", "a.py", [0, 1]), rows("node-2", "torchrun:9", "a.py", [2, 3])
    assert said(one, other, of="torchrun:7") == said(one) == "Rank 1 is stopped"


def test_several_jobs_on_another_host_do_not_matter() -> None:
    others = [rows("node-2", f"torchrun:{pid}", "b.py", [1]) for pid in (7, 9)]
    assert said(rows("node-1", "torchrun:3", "a.py", [0, 1]), *others) == "Rank 1 is stopped"


def long_answer(*silent: str) -> Diagnosis:
    """One that fills the screen, about hosts of which some did not answer."""
    hosts = [Missing(what=f"{host}: no answer in 20 s. Look.", why_it_matters=HOST_NOT_LOOKED_AT) for host in silent]
    others = [Missing(what=f"the log of rank {rank}: cut", why_it_matters="x " * 90) for rank in range(40)]
    claims = [
        Claim(finding="rank.raised", claim=f"rank {n} raised", source="x.log:3", quote="y " * 100) for n in range(40)
    ]
    return Diagnosis(
        verdict=Verdict.UNDECIDED,
        headline="Rank 1 is stopped",
        culprits=Party(ranks=[1]),
        evidence=claims,
        missing=[*hosts, *others],
        fix=["z " * 150] * 20,
        chain=["w " * 150] * 20,
    )


def test_a_silent_host_is_never_pushed_out_of_the_text() -> None:
    answer = long_answer("node-7", "node-[20-31]", "login-3")
    out = io.StringIO()
    render_diagnosis(answer, Console(file=out, width=100))
    assert all(name in out.getvalue() for name in ("no answer", "node-7", "node-[20-31]", "login-3"))
    told = [one["untrusted_what"] for one in diagnosis_payload(answer)["missing"]]
    assert [line.partition(":")[0] for line in told[:3]] == ["node-7", "node-[20-31]", "login-3"]


def test_hosts_for_many_reasons_are_all_named() -> None:
    out = io.StringIO()
    render_diagnosis(long_answer(*(f"node-{n}" for n in range(9))), Console(file=out, width=100))
    assert all(f"node-{n}" in out.getvalue() for n in range(9))


def test_where_all_hosts_answered_nothing_is_said_of_it() -> None:
    out = io.StringIO()
    render_diagnosis(long_answer(), Console(file=out, width=100))
    assert "no answer" not in out.getvalue()


def test_two_jobs_of_one_shell_are_told_apart() -> None:
    one, other = (
        [row | {"master": f"10.0.0.1:{port}", "pid": port + number} for number, row in enumerate(job)]
        for port, job in (
            (29500, rows("node-1", "env:7", "a.py", [0, 1])),
            (29600, rows("node-1", "env:7", "b.py", [1])),
        )
    )
    assert "one of the jobs a.py (env:7 on node-1), b.py (env:7 on node-1)" in said(one, other, of="env:7")
    seen = Finding(code="rank.stopped", severity=Severity.FAILURE, ranks=[1], summary="", attributes={"pid": 29601})
    answer = Diagnosis(verdict=Verdict.UNDECIDED, headline="x", culprits=Party(ranks=[1], hosts=["node-1"]))
    with Store() as store:
        store.insert({"ranks": [*one, *other]})
        assert headline_with_job(answer, jobs_by_rank(store), [seen]) == "x [job b.py (env:7 on node-1)]"
