"""An agent with a shell sees its workplace alone: it finds no truth, no checkout, no other process, and no way out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from made_incidents import recorded
from playing_agents import CHEAT, program

from ddx_evals.agents.arm import Arm, Tools
from ddx_evals.agents.command import CommandAgent
from ddx_evals.agents.workplace import furnish, written_answer
from ddx_evals.incidents import CANARY, View, staged
from ddx_evals.sealed import SealedPlace, run_beside, run_in, sealing_fails
from ddx_evals.sealed.program import INSIDE
from ddx_tools.knowledge.resources import incidents_dir, lab_dir
from ddx_tools.model.errors import UsageError

HUNG = recorded("fewer-batches")
CHECKOUT = Path(__file__).parents[2]
pytestmark = [pytest.mark.needs("linux"), pytest.mark.needs("unshare"), pytest.mark.needs("setpriv")]


@pytest.fixture(autouse=True)
def namespaces() -> None:
    if reason := sealing_fails():
        pytest.skip(reason)


def said(place: SealedPlace, command: Sequence[str]) -> str:
    with run_in(place, command) as process:
        output, _ = process.communicate(timeout=60)
        return output.decode()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> SealedPlace:
    """That of the arm that is given the most, for a real incident."""
    scratch = tmp_path_factory.mktemp("work")
    with staged(HUNG, View.FULL) as material:
        cheat = program(scratch, CHEAT, "cheat.py")
        return furnish(scratch, Arm(Tools.ALL, skill=True), "Why?", material, seen={"/opt/cheat.py": cheat})


def test_a_cheating_agent_finds_nothing(workplace: SealedPlace) -> None:
    assert HUNG.truth.provenance
    words = [CANARY, HUNG.truth.deciding_fact, HUNG.truth.provenance.command]
    python = said(workplace, ["sh", "-c", "head -1 /opt/ddx/program/bin/ddx"]).removeprefix("#!").split()[0]
    found, *ways_out = said(workplace, [python, "/opt/cheat.py", *words]).splitlines()
    assert found == ""
    assert len(ways_out) == 5
    assert not [way for way in ways_out if not way.endswith(": refused")]


def test_the_cheat_would_find_a_truth_that_is_there(tmp_path: Path) -> None:
    planted = tmp_path / "truth.yaml"
    planted.write_text(CANARY)
    seen = {"/opt/cheat.py": program(tmp_path, CHEAT, "cheat.py"), "/opt/kept/truth.yaml": planted}
    place = furnish(tmp_path, Arm(Tools.NONE), "Why?", None, seen=seen)
    python = str(Path(sys.executable).resolve())
    found = said(place, [python, "/opt/cheat.py", CANARY])
    assert found.splitlines()[0] == "/opt/kept/truth.yaml"
    assert f"/opt/kept/truth.yaml: {CANARY.encode()!r}" in found


def test_the_checkout_and_other_processes_are_not_there(workplace: SealedPlace) -> None:
    listed = said(workplace, ["sh", "-c", f"ls -d {CHECKOUT}/evals {incidents_dir()} {lab_dir()}; ls -d /proc/[0-9]*"])
    assert listed.count("No such file") == 3
    processes = [line for line in listed.splitlines() if line.startswith("/proc/")]
    assert len(processes) <= 3  # the shell, ls, and nobody else
    assert f"/proc/{os.getpid()}" not in processes


def test_ddx_works_there_and_knows_neither_lab_nor_evals(workplace: SealedPlace) -> None:
    diagnosis = said(workplace, ["ddx", "why", "--json", "material"])
    assert '"uneven-data"' in diagnosis
    shown = said(workplace, ["sh", "-c", f"ddx evals list; ls {INSIDE}/program/packages/ddx_tools/_data"])
    assert "No such command" in shown
    assert shown.split()[-2:] == ["playbooks", "skill"]


def test_ddx_reads_pickled_records_there(tmp_path: Path) -> None:
    """An incident that records alone decide: nothing else lies in the material."""
    records = CHECKOUT / "tests/fixtures/flight_records/shape-fault"
    place = furnish(tmp_path, Arm(Tools.ALL), "Why?", records)
    answer = said(place, ["ddx", "why", "--json", "material"])
    assert '"verdict":"diagnosed"' in answer and "collective-shape-mismatch" in answer, answer


def test_nothing_but_the_workplace_can_be_written(workplace: SealedPlace) -> None:
    tried = said(
        workplace,
        ["sh", "-c", "for d in / /usr /etc /opt material; do touch $d/x && echo written $d; done; touch x /tmp/x; ls"],
    )
    assert "written" not in tried
    assert "x" in tried.split()
    assert (workplace.directory / "x").exists()


def test_it_gets_no_variable_of_ours_but_those_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "told")
    with run_in(SealedPlace(tmp_path), ["env"], {"GIVEN": "yes"}) as process:
        output = process.communicate(timeout=60)[0].decode()
    assert "GIVEN=yes" in output
    assert "SECRET_OF_MINE" not in output
    assert str(tmp_path) not in output


def test_what_it_leaves_running_ends_with_it(tmp_path: Path) -> None:
    with run_in(SealedPlace(tmp_path), ["sh", "-c", "sleep 1000 & echo started; exec sleep 1000"]) as process:
        assert process.stdout
        assert process.stdout.readline() == b"started\n"
    assert process.returncode is not None  # and no test may leave a process behind


def test_without_a_seal_it_sees_the_machine(tmp_path: Path) -> None:
    with run_beside(SealedPlace(tmp_path), ["ls", str(incidents_dir())]) as process:
        output, _ = process.communicate(timeout=60)
    assert b"dev" in output


@pytest.mark.needs("root")
def test_a_user_without_privileges_is_sealed_as_well(tmp_path: Path) -> None:
    program = (
        "import tempfile, sys; from pathlib import Path; from ddx_evals.sealed import *\n"
        "with tempfile.TemporaryDirectory() as own, run_in(SealedPlace(Path(own)), "
        f"['sh', '-c', 'ls /; ls {incidents_dir()} || echo unseen']) as p:\n"
        "    print(p.communicate(timeout=60)[0].decode())\n"
    )
    demoted = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    environment = {**os.environ, "TMPDIR": "/tmp", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*demoted, sys.executable, "-c", program], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    if "not permitted" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("another user cannot read this checkout, or may not make namespaces")
    assert "job" in done.stdout.split(), done.stdout + done.stderr
    assert "unseen" in done.stdout.split()


def test_a_link_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "truth.json").write_text("{}")
    (tmp_path / "diagnosis.json").symlink_to(tmp_path / "truth.json")
    assert written_answer(tmp_path) is None
    (tmp_path / "diagnosis.json").unlink()
    os.mkfifo(tmp_path / "diagnosis.json")
    assert written_answer(tmp_path) is None
    (tmp_path / "diagnosis.json").unlink()
    (tmp_path / "diagnosis.json").write_text("{}")
    assert written_answer(tmp_path) == b"{}"


@pytest.mark.parametrize("shown", [CHECKOUT, Path("/"), incidents_dir() / "dev"])
def test_what_would_show_the_truth_is_refused_under_seal(shown: Path) -> None:
    agent = CommandAgent(["true"], Arm(Tools.ALL), 10, see=[shown])
    with pytest.raises(UsageError, match="would show the truth"):
        agent.check([HUNG.directory])
    CommandAgent(["true"], Arm(Tools.ALL), 10, see=[shown], sealed=False).check([HUNG.directory])


def test_a_program_that_is_not_there_is_said_to_be_so() -> None:
    with pytest.raises(UsageError, match="no such file or directory"):
        CommandAgent(["true"], Arm(Tools.ALL), 10, see=[Path("/nowhere/at/all")]).check([])
