"""Flight records of all encodings and versions become one shape; what is no record is refused in words."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from constructed_records import RECORDS, as_pickle, as_torch, dump, entry, rows_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ddx_tools.knowledge.recorded_calls import split_profiling_name
from ddx_tools.model.errors import UnreadableInput
from ddx_tools.model.files.kinds import looks_like_dump
from ddx_tools.model.files.rank_names import rank_of_name
from ddx_tools.parsers.flight_records import fr_dump, fr_entries
from ddx_tools.parsers.flight_records.call_sites import call_site
from ddx_tools.parsers.flight_records.fr_dump import read_dump
from ddx_tools.parsers.flight_records.fr_origin import DumpOrigin, GroupMembers, origin_of_header
from ddx_tools.probes.flight_recorder.tables import RecordTables, group_key

MESH = RECORDS / "dp_tp_stall-fault"

JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY_KEYS = [
    *("record_id", "pg_id", "process_group", "collective_seq_id", "p2p_seq_id", "op_id", "profiling_name"),
    *("time_created_ns", "time_discovered_completed_ns", "timeout_ms", "state", "retired", "is_p2p", "frames"),
    *("input_sizes", "input_dtypes", "output_sizes", "output_dtypes"),
]


def test_a_real_gloo_pickle_is_read_with_frames_and_nanoseconds() -> None:
    record = read_dump((MESH / "rank_2.pkl").read_bytes())
    assert (record.version, record.encoding, record.backend, record.with_frames) == ("2.10", "pickle", "gloo", True)
    columns = record.entries
    record_ids = columns.column("record_id")
    newest = max(range(len(record_ids)), key=lambda place: record_ids[place] or 0)
    kind = columns.kinds[columns.kind[newest]]
    call, progress = columns.calls[kind.call], columns.progresses[kind.progress]
    assert (call.op, columns.groups[kind.group].description, call.input_sizes) == ("all_reduce", "mesh_tp", "[[32]]")
    assert columns.column("seq")[newest] == 11
    assert progress.state == "scheduled" and not progress.retired
    frames = columns.sites[columns.site[newest]]
    assert ("/srv/recorded/train.py", "dp_tp_stall") in {(file, name) for file, _, name in frames}
    assert (columns.column("created_ns")[newest] or 0) > 1_700_000_000_000_000_000


def test_pickle_and_json_of_one_moment_differ_in_frames_only() -> None:
    bare = rows_of((MESH / "rank_2.bare.pkl").read_bytes())
    text = rows_of((MESH / "rank_2.json").read_bytes())
    assert bare == text
    full = rows_of((MESH / "rank_2.pkl").read_bytes())
    sites = {"user_file", "user_line", "user_function", "site"}
    assert [{k: v for k, v in row.items() if k not in sites} for row in full["collectives"]] == [
        {k: v for k, v in row.items() if k not in sites} for row in bare["collectives"]
    ]
    assert all(row["site"] for row in full["collectives"]) and not any(row["site"] for row in bare["collectives"])


def test_json_without_entries_is_an_empty_record() -> None:
    record = read_dump(b'{"version":"2.10","pg_config":{},"pg_status":{},"comm_lib_version":""}')
    assert len(record.entries) == 0 and record.backend is None and not record.with_frames
    assert rows_of(b'{"version":"2.10","pg_config":{}}')["fr_dumps"][0]["entries"] == 0


def test_json_writes_zero_for_an_unknown_time_and_text_for_counters() -> None:
    top = dump(
        entry(time_discovered_completed_ns=0, process_group=["0", "default_pg"]),
        pg_status={"0": {"last_enqueued_collective": "8", "last_completed_collective": "-1"}},
    )
    record = read_dump(json.dumps(top).encode())
    assert record.entries.column("completed_ns") == [None]
    assert (record.status["0"].last_enqueued, record.status["0"].last_completed) == (8, 0)


@pytest.mark.parametrize("version", ["2.1", "2.4", "2.9", "2.10", "2.11"])
def test_versions_differ_in_keys_that_may_be_absent(version: str) -> None:
    old = entry()
    if version == "2.1":
        for key in ("timeout_ms", "is_p2p", "retired"):
            del old[key]
    top = dump(old, version=version)
    if version == "2.9":
        top["nccl_version"] = top.pop("comm_lib_version")
    rows = rows_of(as_pickle(top))
    assert (rows["fr_dumps"][0]["version"], rows["fr_dumps"][0]["library"]) == (version, "2.27.3")
    (row,) = rows["collectives"]
    assert (row["op"], row["backend"], row["done"]) == ("all_reduce", "nccl", True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nccl:all_reduce", ("nccl", "all_reduce", None)),
        ("gloo:barrier", ("gloo", "barrier", None)),
        ("nccl:send 1->2", ("nccl", "send", "1->2")),
        ("nccl:recv 3<-0", ("nccl", "recv", "0->3")),
        ("gloo:recv 3<-?", ("gloo", "recv", "?->3")),
        ("ncclx:_all_gather_base", ("ncclx", "_all_gather_base", None)),
        ("all_reduce", (None, "all_reduce", None)),
        ("", (None, "", None)),
    ],
)
def test_profiling_names_are_split_and_both_ends_name_the_same_pair(name: str, expected: tuple[Any, ...]) -> None:
    assert split_profiling_name(name) == expected


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("model/data.pkl", b"\x80\x02}.")
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"epoch 3 loss 0.25\n", "neither a pickle nor a JSON object"),
        (archive(), "zip archive"),
        (b'{"model": "gpt2", "layers": 12}', "not a flight record"),
        (b'{"version": "2.10", "entries": [', "damaged or truncated JSON"),
        (b'{"entries": "many"}', "not a list"),
        (b"[1, 2]", "neither a pickle nor a JSON object"),
        (b'{"entries":' + b"[" * 100_000, "damaged or truncated JSON"),
        (as_pickle([1, 2]), "is a list, not a dictionary"),
        (as_pickle({"state_dict": {}}), "not a flight record"),
        (b"\x7fELF" + bytes(100), "neither a pickle nor a JSON object"),
    ],
    ids=["empty", "log", "checkpoint", "config", "cut", "entries", "array", "deep", "list", "dict", "elf"],
)
def test_a_foreign_file_is_refused_with_a_clear_line(data: bytes, words: str) -> None:
    with pytest.raises(UnreadableInput, match=words):
        read_dump(data)


def test_an_all_to_all_of_format_2_11_lists_its_splits() -> None:
    splits = entry(profiling_name="nccl:all_to_all", input_split_sizes=[3, 5], output_split_sizes=[[1, 7]])
    (call,) = read_dump(as_torch(splits, version="2.11")).entries.calls
    assert (call.input_splits, call.output_splits) == ("[3, 5]", "[1, 7]")


def test_numbers_as_text_are_numbers() -> None:
    """As in records that went through another program's JSON."""
    texts = entry(record_id="7", collective_seq_id="8", timeout_ms="1000", time_created_ns="5", input_sizes=[["4"]])
    for data in (as_torch(texts, texts, texts), as_pickle(dump(texts)), json.dumps(dump(texts)).encode()):
        rows = rows_of(data)["collectives"]
        found = [(r["record_id"], r["seq"], r["timeout_ms"], r["created_ns"], r["input_sizes"]) for r in rows]
        assert set(found) == {(7, 8, 1000, 5, "[[4]]")}


def test_half_a_character_costs_that_character() -> None:
    rows = rows_of(b'{"entries":[{"state":"\\ud800 done","profiling_name":"nccl:all\\udfff","frames":[]}]}')
    assert [(row["state"], row["op"]) for row in rows["collectives"]] == [("? done", "all?")]


def test_shared_lists_that_multiply_when_walked_stay_bounded() -> None:
    shape = [1] * 10_000
    many = [shape] * 10_000
    record = read_dump(as_pickle(dump(*[entry(input_sizes=many) for _ in range(50)])))
    assert record.entries.calls[0].input_sizes is None


def test_lists_that_many_entries_share_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_entries, "_MAX_ITEMS", 1000)
    types = ["Float"] * 300
    record = read_dump(as_pickle(dump(*[entry(input_dtypes=types, timeout_ms=n + 1) for n in range(10)])))
    listed = [call.input_dtypes is not None for call in record.entries.calls]
    assert listed == [True] * 3 + [False] * 7


def test_groups_that_share_one_long_list_of_members_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_dump, "_MAX_MEMBER_CHARACTERS", 1000)
    ranks = str(list(range(100)))
    config = {f"g{n}": {"name": f"g{n}", "desc": "", "ranks": ranks} for n in range(5)}
    record = read_dump(as_torch(pg_config=config))
    assert [group.ranks is not None for group in record.config] == [True] * 2 + [False] * 3


def test_more_different_calls_than_any_record_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fr_entries, "_MAX_DISTINCT", 100)
    for data in (
        as_torch(*[entry(timeout_ms=70_000 + n) for n in range(200)]),
        as_pickle(dump(*[entry(pg_id=n) for n in range(200)])),
    ):
        with pytest.raises(UnreadableInput, match="more than 100 different"):
            read_dump(data)


def test_json_has_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps(dump(*[{}] * 101)).encode()
    monkeypatch.setattr(fr_dump, "_MAX_ENTRIES", 100)
    with pytest.raises(UnreadableInput, match="more than 100 entries"):
        read_dump(data)
    monkeypatch.setattr(fr_dump, "MAX_BYTES", 100)
    with pytest.raises(UnreadableInput, match="larger than the limit of 100"):
        read_dump(data)


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["version", "entries", "pg_config", "pg_status"]),
        JSON_VALUE | st.lists(st.dictionaries(st.sampled_from(ENTRY_KEYS), JSON_VALUE), max_size=3),
        min_size=1,
    )
)
@settings(max_examples=100)
def test_wrong_types_in_any_place_become_unknown_values(top: dict[str, Any]) -> None:
    for data in (as_pickle(top), json.dumps(top).encode()):
        try:
            record = read_dump(data)
        except UnreadableInput as error:
            assert error.message
            continue
        tables = RecordTables()
        tables.add(record, DumpOrigin("x", "file", 0))
        rows = tables.entries.table()
        assert rows.num_rows == len(record.entries)
        assert set(rows["membership"].to_pylist()) <= tables.memberships.keys()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("/tmp/dumps/comm_lib_trace_rank_12", 12),
        ("rank_0.pkl", 0),
        ("rank-3.81234.exception.fr.pickle", 3),
        ("_dump_5", 5),
        ("job17_node-2_rank4.json", 4),
        ("trace7", None),
        ("my_prefix_9", 9),
        ("model.json", None),
        ("frank3y", None),
    ],
)
def test_the_rank_is_read_from_the_name_and_never_guessed(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


@pytest.mark.parametrize("name", ["rank_2.pkl", "rank_2.bare.pkl", "rank_2.json"])
def test_real_records_are_told_by_their_first_bytes(name: str) -> None:
    assert looks_like_dump((MESH / name).read_bytes()[:1024])


@pytest.mark.parametrize("data", [b"", b"loss 0.1", b'{"a": 1}', as_pickle({"model": [1]}), archive()[:1024]])
def test_other_files_are_not_taken_for_records(data: bytes) -> None:
    assert not looks_like_dump(data)


def test_groups_come_from_the_header_where_gloo_lists_none() -> None:
    header = json.loads((MESH / "rank_2.header.json").read_bytes())
    rows = rows_of((MESH / "rank_2.pkl").read_bytes(), origin_of_header(header, "raw/x", "agent"))
    groups = {row["description"]: row for row in rows["groups"]}
    assert groups["mesh_tp"]["members"] == [2, 3] and groups["mesh_dp"]["members"] == [0, 2]
    assert (groups["mesh_tp"]["last_enqueued"], groups["mesh_tp"]["last_completed"]) == (11, 10)
    assert groups["default_pg"]["last_enqueued"] is None, "it never enqueued anything there"
    assert rows["fr_dumps"][0]["world_size"] == 4 and rows["fr_dumps"][0]["rank"] == 2
    assert rows["collectives"][-1]["group_key"] == groups["mesh_tp"]["group_key"]


def test_without_a_header_members_of_sub_groups_are_unknown() -> None:
    rows = rows_of((MESH / "rank_2.pkl").read_bytes(), DumpOrigin("x", "file", 2))
    assert {row["description"]: row["members"] for row in rows["groups"]} == {"mesh_tp": None, "mesh_dp": None}
    assert rows["fr_dumps"][0]["world_size"] is None


def test_without_a_header_gloo_still_lists_a_lone_default_group() -> None:
    data = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()
    rows = rows_of(data)
    assert [row["members"] for row in rows["groups"]] == [[0, 1, 2, 3]]


def test_groups_of_one_name_and_other_members_are_other_groups() -> None:
    assert group_key("1", "mesh_dp", (0, 2)) != group_key("1", "mesh_dp", (1, 3))
    assert group_key("1", "a", tuple(range(1024))) == "1@0-1023"
    assert group_key("1", "a", tuple(range(100_000))) == "1@0-99999"
    assert group_key("1", "a", (3, 1)) != group_key("1", "a", (1, 3)), "the order gives the group-local ranks"


def test_what_completed_by_the_counter_is_done_though_not_retired_yet() -> None:
    late = entry(record_id=8, collective_seq_id=9, retired=False, state="scheduled", profiling_name="gloo:barrier")
    status = {"0": {"last_enqueued_collective": 10, "last_completed_collective": 9}}
    pending = entry(record_id=9, collective_seq_id=10, retired=False, state="scheduled")
    rows = rows_of(as_pickle(dump(late, pending, pg_status=status)))
    assert [row["done"] for row in rows["collectives"]] == [True, False]


def test_the_call_site_is_the_whole_path_through_the_users_program() -> None:
    library = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    frames = ((library, 99, "all_reduce"), ("/srv/job/util.py", 5, "mean"), ("/srv/job/train.py", 41, "step"))
    other = (*frames[:2], ("/srv/job/train.py", 77, "evaluate"))
    site, elsewhere = call_site(frames), call_site(other)
    assert site is not None and elsewhere is not None
    assert (site["user_file"], site["user_line"]) == ("/srv/job/util.py", 5)
    assert site["path"] != elsewhere["path"]
    assert call_site(((library, 99, "all_reduce"),)) is None


def test_two_deep_paths_that_part_at_the_end_stay_apart() -> None:
    common = tuple((f"/srv/job/{'x' * 50}.py", line, "f") for line in range(150))
    sites = [call_site((*common, ("/srv/job/a.py", line, "g"))) for line in (1, 2)]
    paths = {site["path"] for site in sites if site}
    assert len(paths) == 2 and all(len(path) < 5000 for path in paths)


def test_a_header_with_wrong_types_says_nothing() -> None:
    header = {"rank": "3", "host": 7, "world_size": -1, "taken_at_ns": None, "groups": [{"name": 1}, 5, {"name": "0"}]}
    origin = origin_of_header(header, "x")
    assert (origin.rank, origin.host, origin.world_size, origin.taken_ns) == (None, None, None, None)
    assert origin.groups == (GroupMembers("0", "", None),)
