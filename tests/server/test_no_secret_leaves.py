"""Secrets in every place that ddx looks at reach no bundle, no terminal, no JSON, no MCP answer and no transcript."""

from __future__ import annotations

import contextlib
import gzip
import html
import io
import json
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from asking import conversing, report
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextResourceContents
from messages_api import call, result_text
from planted_secrets import FORMS, KEY, KEY_LINES, PLANTED, TOKENS, leaks, seen
from serve_session import in_session
from stub_tools import StubTools

from ddx_server import cli
from ddx_server.ask.transcript import AskTranscript
from ddx_server.render.output import print_json
from ddx_server.render.redacted_streams import as_it_is, redacted
from ddx_server.run.notify import Notifier
from ddx_server.serve.config import ServeConfig
from ddx_server.serve.redaction import without_secrets
from ddx_server.serve.replies import result
from ddx_tools.sources.bundle import Bundle

IN_NAME, IN_NOTE, IN_SOURCE, IN_LOCALS = TOKENS[0], TOKENS[1], TOKENS[5], "swordfish-of-the-locals"
IN_VARIABLE, IN_OPTION = "tiger-of-the-environment", "lion-of-the-command-line"
ALL = sorted({secret for _, secret in PLANTED if len(secret) >= 6})
ALL += [IN_NAME, IN_NOTE, IN_SOURCE, IN_LOCALS, IN_VARIABLE, IN_OPTION, *KEY_LINES]

LOG = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 7, in <module>
[rank0]:     login(token="{source}")
[rank0]: RuntimeError: {line}
"""
STACK = """\
Process 41: python train.py --wandb-key {option}
Python v3.11.4 (/usr/bin/python3.11)

Thread 41 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2800)
    main (train.py:10)
        Arguments:
            db_password: "{local}"
        Locals:
            config: {{"api_key": "{local}", "lr": 0.1}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with secrets in its logs, its environment, its launch script, its stacks and its names."""
    place = tmp_path / "job"
    (place / f"run-{IN_NAME}").mkdir(parents=True)
    lines = "\n".join(f"[rank0]: {line}" for line, _ in PLANTED)
    error = LOG.format(source=IN_SOURCE, line=PLANTED[1][0])
    (place / f"run-{IN_NAME}" / "job.log").write_text(f"{lines}\n{KEY}\n{error}", encoding="utf-8")
    (place / "in_many_forms.log").write_text(EVERYTHING, encoding="utf-8")
    (place / "utf16.log").write_text(f"{lines}\n{error}", encoding="utf-16")
    (place / "old.log.gz").write_bytes(gzip.compress(f"{lines}\n{error}".encode()))
    with tarfile.open(place / "more.tar.gz", "w:gz") as archive:
        data = f"{lines}\n{error}".encode()
        member = tarfile.TarInfo("rank_1.log")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    (place / "env.txt").write_text(f"RANK=0\nWORLD_SIZE=2\nNCCL_DEBUG=INFO\nRAY_AUTH_TOKEN={IN_VARIABLE}\n")
    (place / "launch.sh").write_text(
        f"export HF_TOKEN={IN_VARIABLE}\ntorchrun train.py --wandb-key {IN_OPTION} --lr 1\n"
    )
    (place / "rank0.pyspy.txt").write_text(STACK.format(option=IN_OPTION, local=IN_LOCALS))
    return place


def leaked(text: str) -> list[str]:
    shown = seen(text.encode("utf-8", "replace"))
    return [secret for secret in ALL if leaks(secret, text) or leaks(secret.replace("\\", ""), shown)]


ONE_LINE = [form for name, form in FORMS.items() if "utf-16" not in name]
EVERYTHING = "\n".join(
    ONE_LINE[(at + turn) % len(ONE_LINE)](*planted).decode("utf-8", "replace")
    for at, planted in enumerate(PLANTED)
    for turn in (0, 5)
)
"""Each shape, and each form in which it may stand in a text. (test_redaction_catalogue.py has each with each.)"""


def printed(text: str, _: Path) -> str:
    (shown := redacted(io.StringIO())).write(text)
    return cast("io.StringIO", as_it_is(shown)).getvalue()


def printed_as_json(text: str, _: Path) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        print_json(json.dumps({"line": text}))
    return str(json.loads(shown.getvalue())["line"])


def answered(text: str, _: Path) -> str:
    content = result({"summary": text}).structured_content
    assert content is not None
    return str(content["summary"])


def refused(text: str, _: Path) -> str:
    def fail(_: Any) -> Any:
        raise MCPError(1, text)

    with pytest.raises(MCPError) as error:
        anyio.run(without_secrets, cast("Any", SimpleNamespace(method="tools/call")), fail)
    return error.value.message


def noted(text: str, place: Path) -> str:
    with AskTranscript(place / "asked.jsonl") as transcript:
        transcript.add("result", text=text)
    return str(json.loads((place / "asked.jsonl").read_text())["text"])


def notified(text: str, place: Path) -> str:
    Notifier(file=place / "told").tell({"text": text})
    return str(json.loads((place / "told").read_text())["text"])


def asked(text: str, place: Path) -> str:
    script = lambda request: report() if request.turn else [call("diagnose", target=["1"])]  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        done = conversing(patch, place)(script, tools=StubTools(headline=text))
    return "".join(map(result_text, done.requests[1].results))


@pytest.mark.parametrize("door", [printed, printed_as_json, answered, refused, noted, notified, asked])
def test_each_door_holds_each_shape_in_each_form(door: Callable[[str, Path], str], tmp_path: Path) -> None:
    shown = door(EVERYTHING, tmp_path)
    assert len(shown) > 1000 and not leaked(shown)


def test_a_bundle_holds_none(place: Path, tmp_path: Path) -> None:
    assert run_ddx("why", str(place), "--note", f"it logs in with {IN_NOTE}", "--save", str(tmp_path / "bundle")) in (
        1,
        3,
    )
    for file in (tmp_path / "bundle").rglob("*"):
        assert not leaked(file.name)
        if file.is_file():
            data = file.read_bytes()
            # Of some files only the beginning was asked for: a compressed one ends early.
            data = zlib.decompressobj(wbits=31).decompress(data) if data[:2] == b"\x1f\x8b" else data
            assert not leaked(data.replace(b"\0", b"").decode("utf-8", "replace")), file
    with Bundle(tmp_path / "bundle") as bundle:
        assert bundle.manifest.redacted["hugging face token"] > 0


@pytest.mark.parametrize("command", ["report", "post-mortem"])
def test_no_document_to_forward_holds_any(command: str, place: Path, tmp_path: Path) -> None:
    page = tmp_path / "page"
    assert run_ddx(command, str(place), "-o", str(page)) in (1, 3)
    text = html.unescape(page.read_text(encoding="utf-8"))
    assert len(text) > 1_000 and not leaked(text)


def run_ddx(*arguments: str) -> int:
    before = sys.argv
    sys.argv = ["ddx", *arguments]
    try:
        cli.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv, sys.stderr = before, sys.__stderr__
    return 0


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["terminal", "json"])
@pytest.mark.parametrize("command", ["why", "job-log", "env", "stacks"])
def test_neither_a_terminal_nor_json_shows_any(
    command: str, form: list[str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ddx(command, str(place), *form)
    shown = capsys.readouterr()
    assert shown.out and not leaked("".join(shown.out.split())) and not leaked(shown.out + shown.err)
    if form:
        json.loads(shown.out)


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["terminal", "json"])
def test_an_error_shows_none(form: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ddx("why", str(tmp_path / f"absent-{IN_NAME}"), *form) == 2
    shown = capsys.readouterr()
    assert not leaked(shown.out + shown.err) and "such file" in " ".join((shown.out + shown.err).split())


def test_no_answer_of_the_server_holds_any(place: Path) -> None:
    async def talk(client: Client) -> list[Any]:
        opened = await client.call_tool("open_incident", {"path": "."})
        assert opened.structured_content is not None
        incident = opened.structured_content["incident"]
        calls: list[tuple[str, dict[str, Any]]] = [
            ("diagnose", {"target": [incident]}),
            ("job_log", {"target": [incident]}),
            ("env", {"target": [incident]}),
            ("query_evidence", {"target": [incident], "sql": "SELECT * FROM env_values"}),
            ("stacks", {"target": [f"absent-{IN_NAME}"]}),
            ("stacks", {"target": ["."], f"wrong_{IN_NAME}": f"token={IN_VARIABLE}"}),
        ]
        told: list[Any] = [opened, *[await client.call_tool(name, arguments) for name, arguments in calls]]
        listed = await client.read_resource(f"incident://{incident}")
        told.append(listed)
        (text,) = listed.contents
        assert isinstance(text, TextResourceContents)
        files = json.loads(text.text)["files"][:12]
        return told + [await client.read_resource(file["uri"]) for file in files]

    told = in_session(ServeConfig.at([place]), talk)
    assert not leaked("".join(answer.model_dump_json() for answer in told))
    assert [answer.is_error for answer in told[5:7]] == [True, True]


def test_what_the_server_reads_in_pieces_is_redacted_where_they_meet(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x" * ((32 << 10) - 20) + f" {IN_NAME}\nKeyError: 1\n")

    async def talk(client: Client) -> list[str]:
        uri = "incident://inc-recorded/raw/train.log"
        pieces = [await client.read_resource(f"{uri}?first_byte={at}") for at in (0, 32 << 10)]
        return [piece.model_dump_json() for piece in pieces]

    first, second = in_session(ServeConfig.at([tmp_path], recorded=tmp_path / "train.log"), talk)
    assert not any(leaks(secret, first + second) for secret in (IN_NAME, IN_NAME[-14:]))


def test_a_transcript_holds_none(tmp_path: Path) -> None:
    with AskTranscript(tmp_path / "asked.jsonl") as transcript:
        for line, _ in PLANTED:
            transcript.add("result", text=line, structured={"line": line, "inner": json.dumps({"line": line})})
        transcript.add("call", arguments={"name": "db_password", "repr": IN_LOCALS}, env={"HF_TOKEN": IN_VARIABLE})
    assert not leaked((tmp_path / "asked.jsonl").read_text(encoding="utf-8"))
