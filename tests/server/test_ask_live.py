"""`ddx ask` about a live hang: a real job, the real server, and a scripted model whose way there is rough."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from asking import scripted_model
from messages_api import Failure, Message, Reply, Request, Script, call, result_text, text

from ddx_evals.lab import LabRun, load_scenarios

DDX = [sys.executable, "-c", "from ddx_server.cli import main; main()"]
SETTLED_WITHIN_S = 240.0

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.needs("linux"), pytest.mark.needs("torch")]


def rough_way(pid: int) -> Script:
    """The script for the job of a launcher."""

    def script(request: Request) -> Reply:
        if request.turn == 0:
            if not request.attempt:
                return Failure(529, "overloaded_error", "Overloaded", {"retry-after-ms": "1"})
            looks = [call("jobs", target=[str(pid)]), call("stacks", target=[str(pid)])]
            return [text("All ranks first."), *looks, call("job_log", target=["/etc/passwd"])]
        if (found := request.result_of("diagnose")) is None:
            return [call("diagnose", target=[str(pid)])]
        conclusion = [text("That agrees."), call("report_diagnosis", diagnosis=json.loads(found))]
        return conclusion if request.attempt else Message(conclusion, ending="cut")

    return script


@pytest.mark.long
def test_a_live_hang_is_diagnosed_through_overload_a_refused_path_and_a_cut_stream(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with LabRun(load_scenarios()["fewer-batches"], 4) as run:
        run.start()
        run.wait_struck(SETTLED_WITHIN_S)
        with scripted_model(rough_way(run.launcher_pid), monkeypatch) as api:
            done = subprocess.run(
                [*DDX, "ask", "why is my job hung?", str(run.launcher_pid), "--json"],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
        truth = run.truth()
    assert (done.returncode, done.stderr) == (1, ""), done.stdout
    asked = json.loads(done.stdout)
    diagnosis = asked["diagnosis"]
    assert asked["ended"] == "reported"
    assert diagnosis["verdict"] in truth.verdicts
    assert diagnosis["causes"][0]["id"] in truth.causes
    assert frozenset(diagnosis["culprits"]["ranks"]) in truth.culprits

    jobs, stacks, refused = api.requests[2].results
    assert (jobs["is_error"], stacks["is_error"], refused["is_error"]) == (False, False, True)
    assert "4 ranks" in json.loads(result_text(jobs))["untrusted_summary"]
    assert "/etc/passwd" in result_text(refused)
    assert (asked["usage"]["calls"], asked["usage"]["turns"], asked["usage"]["retries"]) == (5, 3, 1)
    kept = [json.loads(line)["kind"] for line in (tmp_path / asked["transcript"]).read_text().splitlines()]
    assert kept == ["question", "turn", *["result"] * 3, "turn", "result", "turn", "result", "end"]
