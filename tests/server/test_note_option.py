"""`ddx why --note`: what somebody says is kept with the rest, and a replay says the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddx_server import cli
from ddx_tools.investigation.run import investigate, replay
from ddx_tools.redaction.published import published_json
from ddx_tools.sources.bundle import Bundle
from ddx_tools.sources.hosts.written import NOTE_PATH

ROOT = Path(__file__).parents[2]
LOG = str(ROOT / "tests/fixtures/logs/torchrun_timeout.log")
BUNDLE = str(ROOT / "tests/fixtures/stacks/lock-order.tar.zst")
NOTES = ["works with NCCL_P2P_DISABLE=1, hangs only at epoch end", "Still hangs with gloo."]
STATED = {
    ("works_with_p2p_disabled", False),
    ("fails_at_epoch_end", False),
    ("works_with_gloo", True),
    ("hangs", False),
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ddx", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out

    return call


def facts(findings: list[Any]) -> set[tuple[str, bool]]:
    return {(f.attributes["fact"], f.attributes["negated"]) for f in findings if f.code == "user.reported"}


def test_notes_are_findings_and_stay_in_the_bundle(tmp_path: Path) -> None:
    found = investigate([LOG], tmp_path / "kept", notes=NOTES)
    assert facts(found.findings) == STATED
    with Bundle(tmp_path / "kept") as bundle:
        assert bundle.read(NOTE_PATH).decode().split("\n\n") == [NOTES[0], NOTES[1] + "\n"]
    again = replay(tmp_path / "kept")
    assert again.findings == found.findings
    assert published_json(again.diagnose()) == published_json(found.diagnose())


def test_notes_say_the_same_wherever_they_come_from(tmp_path: Path) -> None:
    """On the command line, beside the log, or on top of a bundle."""
    (tmp_path / "notes.txt").write_text("\n\n".join(NOTES))
    assert facts(investigate([LOG, str(tmp_path / "notes.txt")]).findings) == STATED
    assert facts(investigate([BUNDLE], notes=NOTES).findings) == STATED


def test_without_notes_nothing_is_reported() -> None:
    assert facts(investigate([LOG]).findings) == set()
    assert facts(investigate([LOG], notes=["", "  "]).findings) == set()


def test_secrets_in_notes_are_not_kept(tmp_path: Path) -> None:
    secret = "hf_" + "abcdefghijklmnopqrstuvwx123456"
    investigate([LOG], tmp_path / "kept", notes=[f"We log in with {secret} and it hangs."])
    written = [path.read_text(errors="replace") for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert not any(secret in text for text in written)


def test_the_user_is_told_what_was_understood(run: Any) -> None:
    _, out = run("why", LOG, "--note", NOTES[0])
    assert "it works with peer-to-peer (P2P) disabled" in out
    _, out = run("why", LOG, "--note", "The moon is made of cheese.")
    assert "Nothing of what you wrote was understood" in out


def test_a_note_is_evidence_beside_what_was_seen_and_never_more(run: Any) -> None:
    """What the stacks establish stands, whatever somebody says."""
    code, out = run("why", BUNDLE, "--json", "--note", "It is always the same node; with P2P disabled it works.")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "diagnosed")
    _, plain = run("why", BUNDLE, "--json")
    assert told["causes"][0]["id"] == json.loads(plain)["causes"][0]["id"]


def test_the_probe_stands_alone(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The job hangs in evaluation.\n")
    code, out = run("notes", str(tmp_path), "--json")
    result = json.loads(out)
    assert code == 0
    assert {row["fact"] for row in result["table"]} == {"hangs", "fails_in_evaluation"}


def test_notes_of_a_bundle_can_be_asked_for(run: Any, tmp_path: Path) -> None:
    investigate([LOG], tmp_path / "kept", notes=NOTES)
    _, out = run("notes", str(tmp_path / "kept"), "--json")
    assert {row["fact"] for row in json.loads(out)["table"]} == {fact for fact, _ in STATED}
