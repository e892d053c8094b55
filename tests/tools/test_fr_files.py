"""Finding flight records among files: by content, within limits, the same live and out of a bundle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from packed_records import CASE, DUMPS, RECORDS, captured, ranks_of, rows_of, tar_gz, zipped

from ddx_tools.model.diagnosis import ProbeStatus
from ddx_tools.model.errors import UsageError
from ddx_tools.model.files.rank_names import facts_of_name, rank_of_name
from ddx_tools.parsers.flight_records.fr_origin import RankPattern
from ddx_tools.sources.bundle import Bundle, BundleWriter
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.hosts.recorded import RecordedHost, RecordingHost
from ddx_tools.sources.hosts.walk import walk
from ddx_tools.sources.raw import Raw

DEBUG_SERVER = RECORDS.parent / "debug_server"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A directory with the records of four ranks and their headers."""
    return Path(shutil.copytree(CASE, tmp_path / "dumps"))


# --- finding them


def test_directories_are_gone_through_and_other_files_left_alone(tmp_path: Path) -> None:
    for rank, (name, data) in enumerate(DUMPS.items()):
        folder = tmp_path / f"node-{rank // 2}" / "dumps"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (tmp_path / "node-0" / "train.log").write_text("step 1\n")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "rank_9").write_bytes(DUMPS["rank_0.pkl"])
    raw = captured(tmp_path)
    assert {dump["rank"]: dump["host"] for dump in rows_of(raw)["fr_dumps"]} == {
        0: "node-0",
        1: "node-0",
        2: "node-1",
        3: "node-1",
    }
    assert raw.searched == [f"5 files in {tmp_path}: 4 flight records"]
    assert ranks_of(captured(tmp_path / ".cache")) == [9], "hidden, but named"


def test_a_file_that_is_named_twice_is_read_once(dumps: Path) -> None:
    assert ranks_of(captured(dumps, dumps / "rank_0.pkl", dumps.parent)) == [0, 1, 2, 3]


def test_neither_pipes_nor_devices_nor_circles_of_links_are_followed(dumps: Path) -> None:
    os.mkfifo(dumps / "rank_5")
    (dumps / "rank_6").symlink_to("/dev/zero")
    (dumps / "rank_7").symlink_to("rank_7")
    (dumps / "latest").symlink_to(dumps)
    (dumps / "rank_8").symlink_to("/nowhere")
    (dumps / "rank_9").symlink_to(dumps / "rank_3.pkl")
    raw = captured(dumps)
    assert ranks_of(raw) == [0, 1, 2, 3, 9]
    assert raw.problems == []
    assert raw.searched[1].startswith("4 links that do not lead to a file")


@pytest.mark.parametrize("named", ["pipe", "missing", "file/below"])
def test_what_is_named_and_is_no_file_is_said_and_costs_nothing_else(dumps: Path, named: str) -> None:
    os.mkfifo(dumps.parent / "pipe")
    (dumps.parent / "file").write_text("")
    raw = captured(dumps.parent / named, dumps)
    assert ranks_of(raw) == [0, 1, 2, 3]
    assert raw.status is ProbeStatus.PARTIAL
    assert len(raw.problems) == 1 and str(dumps.parent / named) in raw.problems[0]


def test_records_that_may_not_be_read_are_named(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root, file modes keep nobody out: the system call is made to refuse."""
    real = os.open

    def refuse(path: Any, *arguments: Any, **others: Any) -> Any:
        if str(path).endswith(("rank_2.pkl", "secret.txt")):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **others)

    (dumps / "secret.txt").write_text("x")
    monkeypatch.setattr("os.open", refuse)
    raw = captured(dumps)
    assert ranks_of(raw) == [0, 1, 3]
    assert raw.status is ProbeStatus.PARTIAL
    help_text = "Run ddx as the owner of the job, or with sudo."
    refused = [f"{dumps}/{name}: permission denied" for name in ("rank_2.pkl", "secret.txt")]
    assert raw.problems == [f"{said}\n{help_text}" for said in refused]
    assert [missing.what for missing in raw.missing] == refused


def test_names_that_are_no_text_are_counted_and_others_escaped(dumps: Path) -> None:
    (dumps / "rank_8\x1b[31m\n").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(dumps) + b"/\xff_rank_9")).write_bytes(DUMPS["rank_0.pkl"])
    raw = captured(dumps)
    assert ranks_of(raw) == [0, 1, 2, 3]
    assert len(raw.problems) == 2
    assert "1 files whose names are not UTF-8" in raw.problems[0]
    assert raw.problems[1].startswith(f"{dumps}/rank_8\\x1b[31m\\n: the file is empty")


def test_a_record_that_changes_between_looking_and_reading_costs_only_itself(dumps: Path) -> None:
    raw = captured(dumps)
    (dumps / "rank_0.pkl").unlink()
    (dumps / "rank_1.pkl").write_bytes(DUMPS["rank_1.pkl"][:1500])
    with (dumps / "rank_2.pkl").open("ab") as file:
        file.truncate(200 << 20)
    assert ranks_of(raw) == [3]
    assert raw.status is ProbeStatus.PARTIAL
    assert ["No such file" in raw.problems[0], "truncated" in raw.problems[1], "larger" in raw.problems[2]] == [
        True
    ] * 3


# --- many files


def test_ten_thousand_ranks_in_one_folder_are_all_found(tmp_path: Path) -> None:
    first = tmp_path / "nccl_trace_rank_0"
    shutil.copy(CASE / "rank_0.pkl", first)
    for rank in range(1, 10_000):
        os.link(first, tmp_path / f"nccl_trace_rank_{rank}")
    assert len(LocalHost("node").files_below(str(tmp_path))) == 10_000


def test_of_too_many_files_those_with_telling_names_are_looked_at_and_the_rest_is_said(dumps: Path) -> None:
    for number in range(500):
        (dumps / f"img_{number}.jpg").write_bytes(b"\xff\xd8")
    found = walk(str(dumps), most=100, timeout_s=60)
    assert {path.name for path in CASE.iterdir()} < {Path(path).name for path, _, _ in found.files}
    assert found.left_out == [f"{dumps}: 100 of 508 files were examined. Name a narrower path."]


def test_what_time_did_not_suffice_for_is_said(dumps: Path) -> None:
    for number in range(600):
        (dumps / f"img_{number}.jpg").write_bytes(b"\xff\xd8")
    found = walk(str(dumps), most=10_000, timeout_s=0)
    assert any("it could not be searched completely within 0 s" in line for line in found.left_out)


def test_what_was_not_looked_at_makes_a_capture_partial(dumps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddx_tools.sources.hosts.local._MOST_LISTED", 6)
    raw = captured(dumps)
    assert raw.status is ProbeStatus.PARTIAL
    assert raw.problems == [f"{dumps}: 6 of 8 files were examined. Name a narrower path."]


# --- replayed


def test_a_replay_finds_what_the_live_look_found(dumps: Path) -> None:
    (dumps / "rank_1.pkl").unlink()
    (dumps / "more.tar.gz").write_bytes(tar_gz({"rank_1.pkl": DUMPS["rank_1.pkl"]}))
    (dumps / "secret.env").write_text("HF_TOKEN=hf_" + "a1B2c3D4" * 4)
    writer = BundleWriter(dumps.parent / "bundle", [])
    live = rows_of(captured(dumps, host=RecordingHost(LocalHost("node"), writer, "import")))
    writer.close()
    shutil.rmtree(dumps)
    with Bundle(dumps.parent / "bundle") as bundle:
        assert {entry.op for entry in bundle.manifest.journal} == {"walk", "look", "unpack", "read"}
        again = rows_of(captured(dumps, host=RecordedHost(bundle, "node")))
    assert again == live
    assert sorted(dump["rank"] for dump in live["fr_dumps"]) == [0, 1, 2, 3]
    (packed,) = [dump["source"] for dump in live["fr_dumps"] if dump["rank"] == 1]
    assert packed == f"{dumps}/more.tar.gz!rank_1.pkl" or packed.startswith("raw/")


def test_a_bundle_that_holds_the_first_bytes_of_every_file_is_replayed(dumps: Path) -> None:
    """As ddx 0.1 captured: a glob, the head of each file, and once more those that are records."""
    (dumps / "train.log").write_text("step 1\n")
    writer = BundleWriter(dumps.parent / "bundle", [])
    host = RecordingHost(LocalHost("node"), writer, "import")
    for file in host.glob(f"{dumps}/**"):
        if Path(file).is_file():
            host.read(file, max_bytes=1024, suffix="bin")
            if "rank" in file:
                host.read(file, max_bytes=64 << 20, suffix="bin")
    writer.close()
    shutil.rmtree(dumps)
    with Bundle(dumps.parent / "bundle") as bundle:
        raw = captured(dumps, host=RecordedHost(bundle, "node"))
    assert ranks_of(raw) == [0, 1, 2, 3]
    assert raw.searched == [f"9 files in {dumps}: 4 flight records"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"files": 1, "matter": [1], "left_out": []}',
        b'{"files": 1, "matter": [], "passed_over": [], "left_out": [], "written_ns": [1]}',
        b'{"files": 1, "matter": [], "passed_over": [], "left_out": [], "written_ns": {"a": Infinity}}',
    ],
)
def test_a_survey_that_somebody_changed_is_an_error_in_words(dumps: Path, answer: bytes) -> None:
    """Bundles of version 1 hold one in the place of a walk."""
    writer = BundleWriter(dumps.parent / "bundle", [])
    writer.write("node", "import", HostCall("survey", str(dumps), suffix="json"), Reply(answer or b" "), 0.0)
    writer.close()
    with Bundle(dumps.parent / "bundle") as bundle:
        raw = captured(dumps, host=RecordedHost(bundle, "node"))
    assert raw.status is ProbeStatus.NO_DATA
    assert "cannot be read" in raw.problems[0]


# --- whose it is


@pytest.mark.parametrize(
    ("path", "rank", "host"),
    [
        ("/tmp/nccl_trace_rank_3", 3, None),
        ("/tmp/nccl_trace_rank_3_node17", 3, "node17"),
        ("node17_rank_3.pkl.gz", 3, "node17"),
        ("x/node-2/rank4", 4, "node-2"),
        ("x/ip-10-0-3-4.ec2.internal/rank_3", 3, "ip-10-0-3-4.ec2.internal"),
        ("compute-0-1/comm_lib_trace_rank_12.zst", 12, "compute-0-1"),
        ("d.tar.gz!/attempt_0/rank_3", 3, None),
        ("node7.tar.gz!rank_3", 3, "node7"),
        ("node1/node2/rank_3", 3, None),
        ("gpu3_rank_1", 1, None),
        ("run5/step_100_rank_1", 1, None),
        ("rank_5/nccl_trace", 5, None),
        ("rank_3.tar.gz!/trace", 3, None),
        ("local_rank_3", None, None),
        ("node_rank_1_rank_9", 9, None),
        ("attempt_0/3/trace", None, None),
        ("fr_trace_20261121_083608.json", None, None),
        ("dump_20261121T083608_rank_7", 7, None),
        ("_dump_5.gz", 5, None),
    ],
)
def test_rank_and_host_are_read_from_the_name_and_never_guessed(path: str, rank: int | None, host: str | None) -> None:
    facts = facts_of_name(path)
    assert (facts.rank, facts.host) == (rank, host)
    assert rank_of_name(path) == rank


@pytest.mark.parametrize(
    ("paths", "together"),
    [
        (["/d/nccl_trace_rank_0", "/d/nccl_trace_rank_1.gz"], True),
        (["/d/rank_0.812.exit.pkl", "/d/rank_1.813.exception.pkl"], True),
        (["/d/rank_0/trace", "/d/rank_1/trace"], True),
        (["/d/attempt_0/rank_0", "/d/attempt_1/rank_1"], False),
        (["/d/a_rank_0", "/d/b_rank_1"], False),
    ],
)
def test_names_that_differ_in_the_rank_alone_are_of_one_attempt(paths: list[str], together: bool) -> None:
    first, second = (facts_of_name(path).attempt for path in paths)
    assert (first == second) is together


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        (r"trace_r(\d+)", "trace_r{}.pkl"),
        (r"[(](\d+)[)]", "trace({})of(4)"),
        (r"(?i)WORKER-(?P<rank>\d+)-of", "7-worker-{}-of-4"),
        (r"/(?P<host>[a-z]+)/r(?P<rank>\d+)$", "alpha/r{}"),
    ],
)
def test_a_pattern_says_where_names_hold_the_rank(tmp_path: Path, pattern: str, names: str) -> None:
    for rank, data in enumerate(DUMPS.values()):
        path = tmp_path / names.format(rank)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    rows = rows_of(captured(tmp_path, rank_pattern=pattern))
    assert sorted(dump["rank"] for dump in rows["fr_dumps"]) == [0, 1, 2, 3]
    assert {dump["host"] for dump in rows["fr_dumps"]} == ({"alpha"} if "host" in pattern else {None})
    assert len({dump["attempt"] for dump in rows["fr_dumps"]}) == 1


def test_a_pattern_holds_inside_archives_and_overrides_what_names_seem_to_say(tmp_path: Path) -> None:
    files = {f"rank_7/part-{rank}": data for rank, data in enumerate(DUMPS.values())}
    (tmp_path / "dumps.zip").write_bytes(zipped(files))
    raw = captured(tmp_path, rank_pattern=r"part-(\d+)")
    assert ranks_of(raw) == [0, 1, 2, 3]


def test_a_pattern_that_fits_no_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(next(iter(DUMPS.values())))
    with pytest.raises(UsageError, match=r"fits none of 1 flight records, such as .*part-0") as refused:
        captured(tmp_path, rank_pattern=r"nowhere-(\d+)")
    assert "--rank-pattern 'trace_r" in refused.value.help


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "no group"),
        ("rank", "no group"),
        ("x(", "not a regular expression"),
        ("(" * 400, "not a regular expression"),
        (r"(a)(\d+)", "which one holds the rank"),
        (r"(?P<host>x)", "needs a group around the rank"),
        (r"(?P<rank>\d+)(?P<pid>\d+)", "needs a group around the rank"),
        (r"(?=x)(\d+)", "cannot be used"),
        (r"(\d+)\1", "cannot be used"),
        (r"(\d{1,60000})", "cannot be used"),
        ("a" * 501, "501 characters"),
    ],
)
def test_what_is_no_pattern_is_refused_with_an_example(tmp_path: Path, pattern: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        captured(tmp_path, rank_pattern=pattern)
    assert "--rank-pattern 'trace_r" in refused.value.help


def test_no_pattern_takes_for_ever() -> None:
    """With `re` this name would take longer than the universe exists."""
    for pattern in (r"((?:a+)+)$", r"((?:a|a)*)b$", r"((?:a|aa)+)$"):
        assert RankPattern.parse(pattern).facts("/d/" + "a" * 4000 + "!").rank is None


# --- the debug server of torch


def test_the_debug_servers_page_holds_the_record_of_every_rank(tmp_path: Path) -> None:
    page = DEBUG_SERVER / "fr_trace_json.html"
    raw = captured(page)
    rows = rows_of(raw)
    assert [(dump["rank"], dump["host"], dump["entries"]) for dump in rows["fr_dumps"]] == [
        (0, "vm", 6),
        (1, "vm", 6),
        (2, "vm", 4),
    ]
    assert raw.problems == []
    assert {group["description"] for group in rows["fr_groups"]} == {"default_pg", "undefined"}
    (tmp_path / "saved.html").write_text(page.read_text().replace("->", "-&gt;").replace("<p", "\n<p"))
    assert ranks_of(captured(tmp_path)) == [0, 1, 2]


def test_what_the_debug_server_could_not_get_is_named(tmp_path: Path) -> None:
    """Transcribed: what the page of a build without NCCL says of rank 1."""
    text = (DEBUG_SERVER / "fr_trace_json.html").read_text()
    start = text.index("<pre>", text.index("<h2>Rank 1:"))
    end = text.index("</pre>", start)
    failed = "<p>Failed to fetch: status=404</p>\n<pre>Handler dump_nccl_trace_json not found"
    (tmp_path / "page.html").write_text(text[:start] + failed + text[end:])
    raw = captured(tmp_path)
    assert ranks_of(raw) == [0, 2]
    assert raw.problems == [
        f"{tmp_path}/page.html!rank_1: the debug server got no record from this rank: "
        "Handler dump_nccl_trace_json not found"
    ]
    (tmp_path / "page.html").write_text(text[: end - 50])
    raw = captured(tmp_path)
    assert ranks_of(raw) == [0]
    assert raw.problems == [f"{tmp_path}/page.html: the page is cut off inside a rank's record"]


def test_pages_of_what_is_active_say_so(tmp_path: Path) -> None:
    text = (DEBUG_SERVER / "fr_trace_json.html").read_text()
    (tmp_path / "page.html").write_text(
        text.replace("fr_trace_json?</h2>", "dump_nccl_trace_json?onlyactive=true</h2>")
    )
    assert {dump["only_active"] for dump in rows_of(captured(tmp_path))["fr_dumps"]} == {True}


def test_tables_of_the_periodic_dumper_are_named_and_not_taken_for_records(dumps: Path) -> None:
    """Transcribed from torch 2.13 (FlightRecorderHandler.dump): what its analysis kept of the records."""
    table = (
        "=== FR Trace ===\n--- Groups ---\nid    desc          size\n0574  default_pg       8\n--- Memberships ---\n"
    )
    for second in range(3):
        (dumps / f"fr_trace_20261121_08360{second}.txt").write_text(table)
    (dumps / "stacks_20261121_083608.txt").write_text("=== Rank 0: http://node:33819/handler/dump_traceback? ===\n")
    raw = captured(dumps)
    assert ranks_of(raw) == [0, 1, 2, 3]
    assert len(raw.problems) == 1
    assert "fr_trace_20261121_083602.txt and 2 more: a table of the debug server's own analysis" in raw.problems[0]
    assert "--endpoint RANK=URL" in raw.problems[0]


def test_a_capture_of_archives_alone_has_data(tmp_path: Path) -> None:
    (tmp_path / "dumps.zip").write_bytes(zipped(DUMPS))
    raw: Raw = captured(tmp_path / "dumps.zip")
    assert raw.status is ProbeStatus.OK
    assert raw.searched == [f"4 files in {tmp_path}/dumps.zip: 4 flight records"]
    assert json.loads(json.dumps(raw.items[0].facts)) == raw.items[0].facts
