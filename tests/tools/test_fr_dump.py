"""Flight records of all encodings and versions become one shape; what is no record is refused in words."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddx_tools.errors import UnreadableInput
from ddx_tools.formats.fr_dump import looks_like_dump, read_dump, split_profiling_name
from ddx_tools.formats.fr_origin import DumpOrigin, GroupMembers, origin_of_header, rank_of_name
from ddx_tools.formats.fr_rows import call_site, group_key, rows_of

RECORDS = Path(__file__).parents[1] / "fixtures" / "flight_records"
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


def entry(**changes: Any) -> dict[str, Any]:
    """An entry as torch 2.9 writes it for NCCL (constructed)."""
    return {
        "frames": [{"name": "step", "filename": "/srv/job/train.py", "line": 41}],
        "record_id": 7,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 8,
        "p2p_seq_id": 0,
        "op_id": 8,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_760_000_000_000_000_000,
        "duration_ms": 1.5,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "time_discovered_started_ns": 1_760_000_000_000_000_001,
        "time_discovered_completed_ns": 1_760_000_000_000_000_002,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **changes,
    }


def dump(*entries: dict[str, Any], **top: Any) -> dict[str, Any]:
    """The top level as torch 2.9 writes it (constructed)."""
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 8, "last_started_collective": 8, "last_completed_collective": 8}
        },
        "comm_lib_version": "2.27.3",
        "entries": list(entries),
        **top,
    }


def as_pickle(value: Any) -> bytes:
    return pickle.dumps(value, 2)


def test_a_real_gloo_pickle_is_read_with_frames_and_nanoseconds() -> None:
    record = read_dump((MESH / "rank_2.pkl").read_bytes())
    last = record.entries[-1]
    assert (record.version, record.encoding, record.backend, record.with_frames) == ("2.10", "pickle", "gloo", True)
    assert (last.op, last.group_description, last.seq, last.input_sizes) == ("all_reduce", "mesh_tp", 11, ((32,),))
    assert last.state == "scheduled" and not last.retired
    assert ("/srv/recorded/train.py", "dp_tp_stall") in {(file, name) for file, _, name in last.frames}
    assert last.created_ns is not None and last.created_ns > 1_700_000_000_000_000_000


def test_pickle_and_json_of_one_moment_differ_in_frames_only() -> None:
    bare = rows_of(read_dump((MESH / "rank_2.bare.pkl").read_bytes()), DumpOrigin("x", "file"))
    text = rows_of(read_dump((MESH / "rank_2.json").read_bytes()), DumpOrigin("x", "file"))
    assert bare == text
    full = rows_of(read_dump((MESH / "rank_2.pkl").read_bytes()), DumpOrigin("x", "file"))
    sites = {"user_file", "user_line", "user_function", "site"}
    assert [{k: v for k, v in row.items() if k not in sites} for row in full["collectives"]] == [
        {k: v for k, v in row.items() if k not in sites} for row in bare["collectives"]
    ]
    assert all(row["site"] for row in full["collectives"]) and not any(row["site"] for row in bare["collectives"])


def test_json_without_entries_is_an_empty_record() -> None:
    record = read_dump(b'{"version":"2.10","pg_config":{},"pg_status":{},"comm_lib_version":""}')
    assert record.entries == () and record.backend is None


def test_json_writes_zero_for_an_unknown_time_and_text_for_counters() -> None:
    top = dump(
        entry(time_discovered_completed_ns=0, process_group=["0", "default_pg"]),
        pg_status={"0": {"last_enqueued_collective": "8", "last_completed_collective": "-1"}},
    )
    record = read_dump(json.dumps(top).encode())
    assert record.entries[0].completed_ns is None
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
    record = read_dump(as_pickle(top))
    assert record.version == version
    assert (record.entries[0].op, record.entries[0].backend) == ("all_reduce", "nccl")
    assert rows_of(record, DumpOrigin("x", "file", 0))["collectives"][0]["done"] is True


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


def test_shared_lists_that_multiply_when_walked_stay_bounded() -> None:
    shape = [1] * 10_000
    many = [shape] * 10_000
    record = read_dump(as_pickle(dump(*[entry(input_sizes=many) for _ in range(50)])))
    assert record.entries[0].input_sizes is None


@given(
    st.dictionaries(
        st.sampled_from(["version", "entries", "pg_config", "pg_status"]),
        JSON_VALUE | st.lists(st.dictionaries(st.sampled_from(ENTRY_KEYS), JSON_VALUE), max_size=3),
        min_size=1,
    )
)
@settings(max_examples=200)
def test_wrong_types_in_any_place_become_unknown_values(top: dict[str, Any]) -> None:
    try:
        record = read_dump(as_pickle(top))
    except UnreadableInput as error:
        assert error.message
        return
    rows = rows_of(record, DumpOrigin("x", "file", 0))
    assert len(rows["collectives"]) == len(record.entries)


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
    rows = rows_of(read_dump((MESH / "rank_2.pkl").read_bytes()), origin_of_header(header, "raw/x", "agent"))
    groups = {row["description"]: row for row in rows["groups"]}
    assert groups["mesh_tp"]["members"] == [2, 3] and groups["mesh_dp"]["members"] == [0, 2]
    assert (groups["mesh_tp"]["last_enqueued"], groups["mesh_tp"]["last_completed"]) == (11, 10)
    assert groups["default_pg"]["last_enqueued"] is None, "it never enqueued anything there"
    assert rows["fr_dumps"][0]["world_size"] == 4 and rows["fr_dumps"][0]["rank"] == 2
    assert rows["collectives"][-1]["group_key"] == groups["mesh_tp"]["group_key"]


def test_without_a_header_members_of_sub_groups_are_unknown() -> None:
    rows = rows_of(read_dump((MESH / "rank_2.pkl").read_bytes()), DumpOrigin("x", "file", 2))
    assert {row["description"]: row["members"] for row in rows["groups"]} == {"mesh_tp": None, "mesh_dp": None}
    assert rows["fr_dumps"][0]["world_size"] is None


def test_without_a_header_gloo_still_lists_a_lone_default_group() -> None:
    data = (RECORDS / "no_sync-fault" / "rank_0.pkl").read_bytes()
    rows = rows_of(read_dump(data), DumpOrigin("x", "file", 0))
    assert [row["members"] for row in rows["groups"]] == [[0, 1, 2, 3]]


def test_groups_of_one_name_and_other_members_are_other_groups() -> None:
    assert group_key("1", "mesh_dp", [0, 2]) != group_key("1", "mesh_dp", [1, 3])
    assert group_key("1", "a", range(1024)) == "1@0-1023"
    assert group_key("1", "a", [3, 1]) != group_key("1", "a", [1, 3]), "the order gives the group-local ranks"


def test_what_completed_by_the_counter_is_done_though_not_retired_yet() -> None:
    late = entry(record_id=8, collective_seq_id=9, retired=False, state="scheduled", profiling_name="gloo:barrier")
    status = {"0": {"last_enqueued_collective": 10, "last_completed_collective": 9}}
    pending = entry(record_id=9, collective_seq_id=10, retired=False, state="scheduled")
    rows = rows_of(read_dump(as_pickle(dump(late, pending, pg_status=status))), DumpOrigin("x", "file", 0))
    assert [row["done"] for row in rows["collectives"]] == [True, False]


def test_the_call_site_is_the_whole_path_through_the_users_program() -> None:
    library = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    frames = [(library, 99, "all_reduce"), ("/srv/job/util.py", 5, "mean"), ("/srv/job/train.py", 41, "step")]
    other = [*frames[:2], ("/srv/job/train.py", 77, "evaluate")]
    assert call_site(frames)["user_file"] == "/srv/job/util.py" and call_site(frames)["user_line"] == 5
    assert call_site(frames)["site"] != call_site(other)["site"]
    assert call_site([(library, 99, "all_reduce")]) == dict.fromkeys(call_site(frames))


def test_two_deep_paths_that_part_at_the_end_stay_apart() -> None:
    common = [(f"/srv/job/{'x' * 50}.py", line, "f") for line in range(150)]
    sites = {call_site([*common, ("/srv/job/a.py", line, "g")])["site"] for line in (1, 2)}
    assert len(sites) == 2 and all(len(site) < 5000 for site in sites)


def test_a_header_with_wrong_types_says_nothing() -> None:
    header = {"rank": "3", "host": 7, "world_size": -1, "taken_at_ns": None, "groups": [{"name": 1}, 5, {"name": "0"}]}
    origin = origin_of_header(header, "x")
    assert (origin.rank, origin.host, origin.world_size, origin.taken_ns) == (None, None, None, None)
    assert origin.groups == (GroupMembers("0", "", None),)
