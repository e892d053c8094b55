"""The command line: what it says to nonsense, its exit codes, and that a probe is declared once."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from ddx_server import cli
from ddx_tools.investigation import run as investigate_module
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.probes.declaration import Probe
from ddx_tools.probes.registry import LIVE_PROBES, PROBES

ROOT = Path(__file__).parents[2]
STACKS = ROOT / "tests/fixtures/stacks"
LOGS = ROOT / "tests/fixtures/logs"
RECORDS = ROOT / "tests/fixtures/flight_records/dp_tp_stall-fault"
# The command as a process of its own.
DDX = [sys.executable, "-c", "from ddx_server.cli import main; main()"]
HUNG, HEALTHY = str(STACKS / "lock-order.tar.zst"), str(STACKS / "healthy.tar.zst")


class Outcome:
    """What a command left: exit code, standard output, standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err
        assert "ddx_server" not in out + err, out + err  # no traceback of our own


def ddx(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: bytes | None = None
) -> Outcome:
    """The command in this process: its entry point, as the shell calls it."""
    monkeypatch.setattr(sys, "argv", ["ddx", *arguments])
    if stdin is not None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    return Outcome(int(ended.value.code or 0), out, err)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str, stdin: bytes | None = None) -> Outcome:
        return ddx(*arguments, monkeypatch=monkeypatch, capsys=capsys, stdin=stdin)

    return call


# --- exit codes


def test_a_hung_job_is_diagnosed_with_code_1(run: Any) -> None:
    done = run("why", HUNG)
    assert done.code == 1
    assert "DIAGNOSED" in done.out
    assert "rank 3" in done.out


def test_a_healthy_job_has_code_0(run: Any) -> None:
    done = run("why", HEALTHY)
    assert (done.code, "HEALTHY" in done.out) == (0, True)


def test_no_evidence_has_code_3(run: Any, tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("hello\n")
    done = run("why", str(tmp_path / "train.log"))
    assert done.code == 3
    assert "UNDECIDED" in done.out
    assert "next check" in done.out


def test_an_ended_job_is_diagnosed_from_its_log_on_standard_input(run: Any) -> None:
    done = run("why", "-", stdin=(LOGS / "torchrun_raise.log").read_bytes())
    assert done.code == 1
    assert "rank 2" in done.out


# --- nonsense


def nonsense(tmp_path: Path) -> dict[str, list[str]]:
    (tmp_path / "empty").mkdir()
    (tmp_path / "noise").mkdir()
    for number in range(3):
        (tmp_path / "noise" / f"file{number}").write_bytes(os.urandom(3_000))
    (tmp_path / "cut.tar.zst").write_bytes(Path(HUNG).read_bytes()[:2_000])
    (tmp_path / "noise.tar.zst").write_bytes(os.urandom(300))
    damaged = tmp_path / "damaged"
    (damaged / "raw").mkdir(parents=True)
    (damaged / "manifest.json").write_bytes(b"\xff\x00{")
    names = ("empty", "noise", "cut.tar.zst", "noise.tar.zst", "damaged", "missing", "missing.log")
    return {name: [str(tmp_path / name)] for name in names} | {
        "no such pid": ["4194304"],
        "an impossible pid": ["9" * 40],
        "no name": [""],
        "NUL": ["a\0b"],
        "an option": ["--no-such-option"],
        "escapes": ["\x1b[31m[red]nothing[/red]\x07"],
    }


@pytest.mark.parametrize(
    "case",
    ["empty", "noise", "cut.tar.zst", "noise.tar.zst", "damaged", "missing", "missing.log", "no such pid",
     "an impossible pid", "no name",
     "NUL",
     "an option",
     "escapes"],
)  # fmt: skip
def test_unusable_input_is_said_with_code_2(case: str, run: Any, tmp_path: Path) -> None:
    done = run("why", *nonsense(tmp_path)[case])
    assert done.code == 2
    assert done.out == ""
    assert done.err.strip()
    assert "\x1b" not in done.err


@pytest.mark.parametrize("case", ["empty", "noise", "cut.tar.zst", "damaged", "missing", "no such pid"])
def test_with_json_errors_are_json_too(case: str, run: Any, tmp_path: Path) -> None:
    done = run("why", *nonsense(tmp_path)[case], "--json")
    assert done.code == 2
    said = json.loads(done.out)
    assert said.keys() == {"error", "help"}
    assert said["error"]


def test_empty_standard_input_is_said(run: Any) -> None:
    done = run("why", "-", stdin=b"")
    assert (done.code, "was empty" in done.err) == (2, True)


def test_random_bytes_on_standard_input_are_said(run: Any) -> None:
    assert run("why", "-", stdin=os.urandom(4_000)).code == 2


@pytest.mark.needs("linux")
def test_a_terminal_as_standard_input_is_said() -> None:
    """Without it the command would wait for the person who waits for it."""
    master, terminal = pty.openpty()
    done = subprocess.run(
        [*DDX, "why", "-"],
        stdin=terminal,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(master)
    os.close(terminal)
    assert (done.returncode, "nothing is piped into ddx" in done.stderr) == (2, True)


def test_closed_standard_input_is_said() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" <&-', "sh", *DDX, "why", "-"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "nothing is piped into ddx" in done.stderr) == (2, True)


def test_saving_where_nothing_can_be_written_is_said(run: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, why in ((tmp_path / "file", "already exists"), (tmp_path / "no" / "x.tar.zst", "cannot be written")):
        done = run("why", str(LOGS / "torchrun_raise.log"), "--save", str(place))
        assert (done.code, why in done.err) == (2, True)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_second_capture_leaves_the_evidence_of_the_first(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = str(LOGS / "torchrun_raise.log")
    for _ in range(2):
        assert run("capture", log).code == 0
    kept = [path.name for path in tmp_path.iterdir()]
    assert len(kept) == 2 and all(name.startswith("incident-2") and "torchrun_raise" in name for name in kept)
    for place in ("one", "one.tar.zst"):
        assert run("capture", log, "-o", place).code == 0
        first = (tmp_path / place).stat().st_mtime_ns
        refused = run("capture", log, "-o", place)
        assert (refused.code, "already exists" in refused.err, "--force" in refused.err) == (2, True, True)
        assert (tmp_path / place).stat().st_mtime_ns == first
        assert run("capture", log, "-o", place, "--force").code == 0
        assert run("why", place).code == 1
    assert run("capture", log, "-o", "one.zip").code == 2 and len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize("columns", ["60", "100"])
def test_a_pipe_is_as_wide_as_columns_says_and_no_line_ends_in_blanks(
    run: Any, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = run("why", HUNG).out.split("\n")
    assert not any(line.endswith(" ") for line in lines)
    opened = [line for line in lines if "ddx show --from" in line]
    assert len(opened) == 1 and HUNG in opened[0]  # what is copied is not wrapped
    assert int(columns) - 20 < max(len(line) for line in lines if line not in opened) <= int(columns)


def test_no_heading_of_a_narrow_table_is_broken(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    printed = run("flight-recorder", str(RECORDS)).out
    assert {"members", "entered", "finished", "furthest", "waiting"} <= set(printed.split())
    for text in (printed, run("stacks", HUNG).out, run("jobs", HUNG).out, run("mesh", str(RECORDS)).out):
        assert not any(line.endswith(" ") or len(line) > 60 for line in text.split("\n") if "ddx " not in line)


def test_an_error_is_not_wrapped_where_it_says_what_to_type(run: Any, tmp_path: Path) -> None:
    place = tmp_path / ("long-" * 30)
    place.mkdir()
    assert str(place / "absent") in run("why", str(place / "absent")).err


def test_the_reason_why_nothing_was_read_is_said(run: Any, tmp_path: Path) -> None:
    dump = 'Process 41: python train.py\nPython v3.11.4 (/usr/bin/python3.11)\n\nThread 41 (active): "MainThread"\n'
    frames = "    barrier (torch/distributed/distributed_c10d.py:4000)\n    main (train.py:12)\n"
    (tmp_path / "all.txt").write_text(dump + frames + "\n" + dump.replace("41", "42") + frames)
    assert "cannot determine which rank" in run("stacks", str(tmp_path / "all.txt")).err
    told = run("why", str(tmp_path / "all.txt")).out
    assert "cannot determine which rank" in told and "rank 0:" in told


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["stacks", HUNG], 1), (["stacks", HEALTHY], 0),
        (["job-log", str(LOGS / "torchrun_raise.log")], 1),
        (["flight-recorder", str(RECORDS)], 1), (["flight-recorder", str(RECORDS).replace("-fault", "-ok")], 0),
        (["network", "--peer", "127.0.0.1", "--port", "1"], 1), (["network", "--peer", "nosuch.invalid"], 1),
    ],
)  # fmt: skip
def test_a_probe_says_by_its_exit_code_whether_something_is_wrong(command: list[str], code: int, run: Any) -> None:
    """By one rule, so that `ddx network --peer node-1 && srun …` starts nothing that cannot work."""
    assert run(*command).code == code


def test_what_was_saved_can_be_looked_at_again(run: Any, tmp_path: Path) -> None:
    saved = str(tmp_path / "incident.tar.zst")
    first = run("why", str(LOGS / "torchrun_raise.log"), "--save", saved, "--json")
    assert run("why", saved, "--json").out == first.out


def test_the_version_is_that_of_the_package(run: Any) -> None:
    assert run("--version").out == f"ddx {version('debug-distributed')}\n"


# --- JSON


@pytest.mark.parametrize("bundle", [HUNG, HEALTHY])
def test_json_is_a_diagnosis_and_nothing_else(bundle: str, run: Any) -> None:
    diagnosis = Diagnosis.model_validate_json(run("why", bundle, "--json").out)
    assert diagnosis.verdict in ("diagnosed", "healthy")


def test_json_has_every_key_whatever_is_answered(run: Any) -> None:
    keys = set(json.loads(run("schema").out)["properties"])
    for target in (HUNG, HEALTHY, str(LOGS / "torchrun_raise.log"), str(LOGS / "torchrun_timeout.log")):
        assert set(json.loads(run("why", target, "--json").out)) == keys


def test_the_schema_describes_what_why_prints(run: Any) -> None:
    schema = json.loads(run("schema").out)
    answer = json.loads(run("why", HUNG, "--json").out)
    assert_valid(answer, schema, schema["$defs"])


def assert_valid(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> None:
    """As much of JSON Schema as pydantic's output uses."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        kinds: dict[str, type] = {"null": type(None), "string": str, "integer": int}
        assert any(isinstance(value, kinds.get(option.get("type", ""), dict)) for option in schema["anyOf"])
        return
    assert "enum" not in schema or value in schema["enum"]
    assert "const" not in schema or value == schema["const"]
    if schema.get("type") == "object" and "properties" in schema:
        assert set(schema.get("required", [])) <= value.keys() <= schema["properties"].keys()
        for name, item in value.items():
            assert_valid(item, schema["properties"][name], definitions)
    if schema.get("type") == "array":
        for item in value:
            assert_valid(item, schema["items"], definitions)


# --- probes


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.id)
def test_the_options_of_a_probe_are_the_fields_of_its_model(probe: Probe[Any]) -> None:
    command = typer.main.get_command(cli.app).commands[probe.command]  # type: ignore[attr-defined]
    parameters = {parameter.name: parameter for parameter in command.params}
    # A launcher's command stands behind two dashes.
    fields = probe.args.model_fields.keys() - {"launcher"}
    hosts = {"hosts", "slurm", "k8s", "via", "gateways", "deadline"} if probe.id in LIVE_PROBES else set()
    explain = {"explain"} if probe.explain else set()
    assert set(parameters) - {"help"} == {*fields, *probe.exports, "save", "force", "as_json", *hosts, *explain}
    for name in fields:
        parameter, field = parameters[name], probe.args.model_fields[name]
        assert parameter.param_type_name == ("argument" if name == "target" else "option")
        if name != "target":
            assert parameter.opts == [f"--{name.replace('_', '-')}"]
            assert parameter.help == field.description
            assert parameter.default == field.get_default(call_default_factory=True)
    shown = CliRunner().invoke(cli.app, [probe.command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.id)
def test_a_probe_answers_out_of_a_bundle(probe: Probe[Any], run: Any) -> None:
    done = run(probe.command, HUNG, "--json")
    assert json.loads(done.out)["probe"] == probe.id
    assert done.code in (0, 1, 3)


def test_a_probe_that_was_not_asked_at_capture_is_not_healthy(run: Any) -> None:
    assert run("native-stacks", HUNG).code == 3


@pytest.mark.parametrize(
    "arguments",
    [["stacks", "--looks", "3"], ["stacks", "--apart-s", "x"], ["flight-recorder", "--frames", "some"], ["nothing"]],
    ids=" ".join,
)
def test_a_wrong_value_is_explained(arguments: list[str], run: Any) -> None:
    done = run(*arguments)
    assert (done.code, "Usage: ddx" in done.err) == (2, True)


# --- errors of ours


def test_an_unexpected_error_is_ours_and_shows_no_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("[red]the store\x1b[0m is gone")

    monkeypatch.setattr(investigate_module, "Store", broken)
    done = run("why", HUNG)
    assert done.code == 70
    assert "ddx failed: RuntimeError: [red]the store" in done.err
    assert "bug in ddx, not in your job" in done.err


def test_an_unexpected_end_of_file_is_ours_too(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise EOFError("ran out of input")

    monkeypatch.setattr(investigate_module, "Store", broken)
    assert run("why", HUNG).code == 70


def test_a_reader_that_went_away_is_no_diagnosis() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*DDX, "why", HEALTHY, "--json"], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == b""


# --- a quick start


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\nsys.argv = ['ddx', '--help']\nfrom ddx_server.cli import main\ntry: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = ('torch', 'duckdb', 'pyarrow', 'anthropic', 'mcp', 'numpy')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert "ddx why" in done.stdout


def test_a_file_that_is_no_bundle_is_not_served(run: Any, tmp_path: Path) -> None:
    (tmp_path / "bin.dat").write_bytes(bytes(range(256)) * 20)
    done = run("serve", "--recorded", str(tmp_path / "bin.dat"))
    assert done.code == 2 and "is not a bundle" in done.err
