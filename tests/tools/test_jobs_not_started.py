"""What a job waits for at its start: launchers on other hosts, and ranks that have no process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from process_snapshots import row, snapshot

from ddx_tools.diagnosis.diagnose import diagnose
from ddx_tools.diagnosis.playbook import load_playbooks
from ddx_tools.evidence.store import Store
from ddx_tools.knowledge.finding_codes import is_registered
from ddx_tools.model.diagnosis import Finding, Verdict
from ddx_tools.parsers.launch.launch_command import meeting_of
from ddx_tools.probes.jobs.probe import PROBE
from ddx_tools.sources.raw import Raw, RawItem

STATIC = "/usr/bin/torchrun --nnodes=2 --node-rank=0 --master-addr=head train.py"
LOCAL = "/usr/bin/torchrun --nnodes=2 --node-rank=0 --master-addr=head --master-addr=localhost train.py"
TRAIN = "/usr/bin/python3 train.py"


def table(*processes: dict[str, Any], host: str = "node-a") -> dict[str, Any]:
    return snapshot(*processes) | {"host": host}


def env_ranks(numbers: list[int], world: int, **variables: str) -> list[dict[str, Any]]:
    """Ranks that a launcher of one's own started, by pid 20 + rank."""
    shared = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "4100"}
    own = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in numbers)
    launcher = row(10, 1, "/usr/bin/python3 launch.py")
    return [launcher, *(row(20 + n, 10, TRAIN, env=shared | e | variables) for n, e in zip(numbers, own, strict=True))]


def findings(
    *tables: dict[str, Any], idle: str | None = None, stacks: dict[int, tuple[str, str | None]] | None = None
) -> list[Finding]:
    """Findings of process tables, of a host without jobs, and of what the main threads of pids do."""
    with Store() as store:
        for one in tables:
            raw = Raw(one["host"], items=[RawItem("processes", json.dumps(one).encode(), "raw/processes.json", {})])
            store.insert(PROBE.parse(raw))
            looks = [
                {"host": one["host"], "pid": pid, "role": "rank", "snapshot": 1, "is_main": True}
                | {"activity": activity, "operation": operation}
                for pid, (activity, operation) in (stacks or {}).items()
            ]
            store.insert({"stack_threads": looks})
        if idle:
            store.insert({"host_facts": [{"host": idle, "topic": "look", "facts": '{"about": []}', "source": "p"}]})
        found = PROBE.analyse(store)
    assert all(is_registered(finding.code) for finding in found)
    return found


def of_startup(found: list[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.code.startswith("startup.")]


def cause_of(found: list[Finding]) -> str | None:
    diagnosis = diagnose(found, load_playbooks())
    return diagnosis.causes[0].id if diagnosis.verdict is Verdict.DIAGNOSED else None


# --- launchers


def test_a_launcher_that_waits_beside_a_host_without_one_misses_that_host() -> None:
    found = findings(table(row(5, 1, STATIC)), idle="node-b")
    short, bare = of_startup(found)
    assert (short.attributes["joined"], short.attributes["expected"], short.hosts) == (1, 2, ["node-a"])
    assert short.attributes["endpoint"] == "head:29500"
    assert bare.hosts == ["node-b"]
    assert cause_of(found) == "rendezvous-missing-rank"
    assert diagnose(found, load_playbooks()).culprits.hosts == ["node-b"]


def test_of_hosts_that_nobody_looked_at_nothing_is_claimed() -> None:
    found = findings(table(row(5, 1, STATIC)))
    assert of_startup(found)[0].attributes["others_unseen"] is True
    assert cause_of(found) is None
    check = diagnose(found, load_playbooks()).next_check
    assert check and "launcher of this job run on the other hosts (1 of 2 seen)" in check.question


@pytest.mark.parametrize(
    "tables",
    [
        [table(row(5, 1, "/usr/bin/torchrun --nproc-per-node=2 train.py"))],
        [table(row(5, 1, STATIC, create_time=1_040.0))],
        [table(row(5, 1, STATIC), *env_ranks([0], 2, MASTER_ADDR="head")[1:2]) | {"processes": [
            row(5, 1, STATIC), row(20, 5, TRAIN, env={"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "head", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"})]}],
    ],
    ids=["one host", "only just started", "its rank runs"],
)  # fmt: skip
def test_a_launcher_that_misses_nobody_is_left_alone(tables: list[dict[str, Any]]) -> None:
    assert not of_startup(findings(*tables, idle="node-c" if len(tables) == 1 else None))


@pytest.mark.parametrize(
    ("tables", "hosts"),
    [
        ([table(row(5, 1, STATIC)), table(row(6, 1, STATIC), host="node-b")], ["node-a", "node-b"]),
        ([table(row(5, 1, LOCAL), row(6, 1, LOCAL))], ["node-a"]),
    ],
    ids=["two hosts", "both on one"],
)
def test_launchers_that_are_all_there_and_start_no_rank_do_not_meet(
    tables: list[dict[str, Any]], hosts: list[str]
) -> None:
    found = findings(*tables)
    (apart,) = of_startup(found)
    assert (apart.code, apart.hosts, apart.attributes["port"]) == ("startup.launchers_apart", hosts, 29500)
    diagnosis = diagnose(found, load_playbooks())
    assert (diagnosis.verdict, diagnosis.culprits.hosts) == (Verdict.UNDECIDED, [])
    assert diagnosis.next_check and diagnosis.next_check.probe == "network"
    assert diagnosis.next_check.args == {"peer": apart.attributes["address"], "port": "29500"}


def test_launchers_of_which_one_has_only_just_begun_may_still_meet() -> None:
    late = table(row(6, 1, STATIC, create_time=1_040.0), host="node-b")
    assert "startup.launchers_apart" not in [one.code for one in of_startup(findings(table(row(5, 1, STATIC)), late))]


def test_launchers_that_meet_at_their_own_addresses_wait_apart() -> None:
    found = findings(table(row(5, 1, LOCAL)), table(row(6, 1, LOCAL), host="node-b"))
    (short,) = of_startup(found)
    assert (short.attributes["apart"], short.attributes["joined"], short.hosts) == (True, 1, ["node-a", "node-b"])
    assert "localhost:29500, which is each host's own address" in short.summary
    assert cause_of(found) != "rendezvous-missing-rank"


@pytest.mark.parametrize(
    ("command", "env", "nodes", "endpoint"),
    [
        ("torchrun --nnodes 2 --master_addr h train.py", {}, 2, "h:29500"),
        ("torchrun --nnodes=2:4 --rdzv-backend=c10d --rdzv-endpoint=h:1 train.py", {}, 2, "h:1"),
        ("python -m torch.distributed.run train.py", {"PET_NNODES": "3", "PET_MASTER_ADDR": "h"}, 3, "h:29500"),
        ("torchrun --nnodes=2 --rdzv-backend=etcd train.py", {}, 2, None),
    ],
)
def test_where_launchers_meet(command: str, env: dict[str, str], nodes: int, endpoint: str | None) -> None:
    meeting = meeting_of(command.split(), env)
    assert meeting is not None
    assert (meeting.nodes, meeting.endpoint) == (nodes, endpoint)


@pytest.mark.parametrize(
    "command",
    ["torchrun train.py", "torchrun --nnodes=1:4 train.py", "torchrun --standalone --nnodes=2 train.py", "torchrun "
     "--nnodes=$N train.py", "torchrun --nnodes=\u0663 train.py", "python train.py --nnodes=2", ""],
)  # fmt: skip
def test_who_meets_nobody(command: str) -> None:
    assert meeting_of(command.split(), {}) is None


@pytest.mark.parametrize(
    ("conf", "limit_s"),
    [("timeout=60", 60.0), ("is_host=1,join_timeout=90", 90.0), ("last_call_timeout=5", None), ("timeout=long", None)],
)
def test_how_long_launchers_wait_for_each_other(conf: str, limit_s: float | None) -> None:
    meeting = meeting_of(["torchrun", "--nnodes=2", f"--rdzv-conf={conf}", "train.py"], {})
    assert meeting is not None
    assert meeting.timeout_s == limit_s


# --- ranks

IMPORTING: dict[int, tuple[str, str | None]] = {20 + rank: ("import", None) for rank in range(3)}
MEETING: dict[int, tuple[str, str | None]] = {20 + rank: ("rendezvous", "init_process_group") for rank in range(3)}


@pytest.mark.parametrize("stacks", [IMPORTING, MEETING], ids=["importing", "in init_process_group"])
def test_a_world_larger_than_what_was_started_is_short_of_a_rank(stacks: dict[int, tuple[str, str | None]]) -> None:
    found = findings(table(*env_ranks([0, 1, 2], 4)), stacks=stacks)
    (short,) = of_startup(found)
    assert (short.attributes["missing"], short.attributes["joined"], short.ranks) == ([3], 3, [0, 1, 2])
    assert short.evidence[0].quote == "pid 20 RANK=0 WORLD_SIZE=4"
    assert cause_of(found) == "rendezvous-missing-rank"


@pytest.mark.parametrize(
    ("processes", "stacks"),
    [
        (env_ranks([0, 1, 2], 3), IMPORTING),
        (env_ranks([0, 1, 2], 4), IMPORTING | {20: ("collective", "all_reduce")}),
        (env_ranks([0, 1, 2], 4), dict.fromkeys(MEETING, ("rendezvous", "new_group"))),
        (env_ranks([0, 1, 2], 4), {}),
        ([*env_ranks([0, 1, 2], 4), row(23, 10, TRAIN, state="Z")], IMPORTING),
        ([one | {"create_time": 1_045.0} for one in env_ranks([0, 1, 2], 4)], IMPORTING),
    ],
    ids=["all are there", "it trains", "a later group", "nobody looked", "the rank ended", "only just started"],
)
def test_a_rank_is_not_called_missing_at_the_start(
    processes: list[dict[str, Any]], stacks: dict[int, tuple[str, str | None]]
) -> None:
    found = findings(table(*processes), stacks=stacks)
    assert not of_startup(found)
    assert cause_of(found) != "rendezvous-missing-rank"


def test_ranks_of_two_hosts_that_meet_at_loopback_are_apart_and_not_missing() -> None:
    hosts = [table(*env_ranks([rank], 2, LOCAL_RANK="0"), host=host) for rank, host in enumerate(["node-a", "node-b"])]
    found = findings(*hosts, stacks=MEETING)
    assert [short.attributes["apart"] for short in of_startup(found)] == [True, True]
    assert cause_of(found) == "rendezvous-wrong-endpoint"


def test_half_of_the_ranks_may_be_on_a_host_that_nobody_looked_at() -> None:
    found = findings(table(*env_ranks([0, 1], 4)), stacks=MEETING)
    assert of_startup(found)[0].attributes["minority"] is False
    assert cause_of(found) is None
