"""`ddx why --note`: what somebody says is kept with the rest, word for word, and is not interpreted."""

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


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ddx", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        assert "ddx_server" not in out + err  # no traceback of our own
        return int(ended.value.code or 0), out

    return call


def test_notes_stay_in_the_bundle_word_for_word(tmp_path: Path) -> None:
    found = investigate([LOG], tmp_path / "kept", notes=NOTES)
    with Bundle(tmp_path / "kept") as bundle:
        assert bundle.read(NOTE_PATH).decode().split("\n\n") == [NOTES[0], NOTES[1] + "\n"]
    again = replay(tmp_path / "kept")
    assert again.said == found.said == ["\n\n".join(NOTES) + "\n"]
    assert again.findings == found.findings
    assert published_json(again.diagnose()) == published_json(found.diagnose())


def test_notes_are_kept_wherever_they_come_from(tmp_path: Path) -> None:
    """On the command line, beside the log, or on top of a bundle."""
    (tmp_path / "notes.txt").write_text("\n\n".join(NOTES))
    assert "".join(investigate([LOG, str(tmp_path / "notes.txt")]).said) == "\n\n".join(NOTES)
    assert "".join(investigate([BUNDLE], notes=NOTES).said).strip() == "\n\n".join(NOTES)
    assert investigate([LOG], notes=["", "  "]).said == []


def test_no_words_of_a_note_are_a_finding() -> None:
    with_notes, without = investigate([LOG], notes=NOTES), investigate([LOG])
    assert [one for one in with_notes.findings if one.code != "notes.brought"] == without.findings
    assert with_notes.diagnose().causes == without.diagnose().causes


def test_secrets_in_notes_are_not_kept(tmp_path: Path) -> None:
    secret = "hf_" + "abcdefghijklmnopqrstuvwx123456"
    investigate([LOG], tmp_path / "kept", notes=[f"We log in with {secret} and it hangs."])
    written = [path.read_text(errors="replace") for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    assert not any(secret in text for text in written)


def test_the_user_is_told_that_facts_count(run: Any) -> None:
    _, out = run("why", LOG, "--note", NOTES[0])
    assert "ddx facts" in out
    assert "ddx facts" not in run("why", LOG)[1]


def test_a_fact_is_evidence_beside_what_was_seen_and_never_more(run: Any) -> None:
    """What the stacks establish stands, whatever somebody says."""
    code, out = run("why", BUNDLE, "--json", "--fact", "always_the_same_host", "--fact", "works_with_p2p_disabled")
    told = json.loads(out)
    assert (code, told["verdict"]) == (1, "diagnosed")
    _, plain = run("why", BUNDLE, "--json")
    assert told["causes"][0]["id"] == json.loads(plain)["causes"][0]["id"]


def test_the_probe_stands_alone(run: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("The job hangs in evaluation.\n")
    code, out = run("notes", str(tmp_path), "--json")
    assert (code, [row["quote"] for row in json.loads(out)["table"]]) == (0, ["The job hangs in evaluation."])
