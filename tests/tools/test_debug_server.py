"""torch's debug server by one address: stacks, records and wait counters of all ranks, whoever of them answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from debug_servers import debug_server

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis
from ddx_tools.model.errors import UsageError
from ddx_tools.parsers.flight_records.debug_pages import workers_of_page
from ddx_tools.parsers.launch.launchers import Job, JobProcess
from ddx_tools.parsers.launch.process_table import ProcessTable
from ddx_tools.sources.hosts.debug_endpoints import server_of_job, server_url


def judged(address: str, save: Path | None = None, store: Store | None = None) -> Diagnosis:
    return investigate([], save, debug_server=address, store=store).diagnose()


def missing(diagnosis: Diagnosis) -> str:
    return "\n".join(gap.what for gap in diagnosis.missing)


def test_one_address_names_the_rank_and_its_line(tmp_path: Path) -> None:
    with debug_server("hung") as address:
        found = judged(address, tmp_path / "bundle")
    assert found.suspects[0].ranks == [2]
    assert found.suspects[0].locations[0].short() == "train.py:12 load_shard"
    again = investigate([str(tmp_path / "bundle")]).diagnose()
    assert (again.verdict, again.suspects, again.causes) == (found.verdict, found.suspects, found.causes)


def test_a_job_that_goes_on_is_not_diagnosed() -> None:
    with debug_server("moving") as address:
        found = judged(address)
    assert found.verdict == "healthy"
    assert not found.suspects


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("silent", "accepted the connection but does not answer"),
        ("gone", "its debug server cannot be reached"),
        ("held", "its debug server answers, but its Python did not"),
        ("garbage", "rank 3"),
    ],
)
def test_a_rank_that_does_not_answer_costs_itself_only(how: str, said: str) -> None:
    with debug_server("hung", ranks={3: how}) as address:
        found = judged(address)
    assert found.suspects[0].ranks == [2]
    assert found.suspects[0].locations[0].short() == "train.py:12 load_shard"
    assert said in missing(found)
    assert "rank 3 ended" not in found.model_dump_json()


@pytest.mark.parametrize("how", ["silent", "held"])
def test_a_rank_that_answers_no_dump_request_is_not_called_dead(how: str) -> None:
    """As in `destroy_process_group()`: the others wait for it, and its process is there."""
    with debug_server("hung", ranks={2: how}) as address:
        result = investigate([], debug_server=address)
    found = result.diagnose()
    assert found.verdict == "undecided"
    assert found.suspects[0].ranks == [2]
    assert "cause undecided" in found.headline
    gone = ("rank.process_gone", "rank.killed", "rank.exited", "rank.raised")
    assert not [finding for finding in result.findings if finding.code in gone]
    (unread,) = [finding for finding in result.findings if finding.code == "rank.unreadable"]
    assert (unread.ranks, "destroy_process_group()" in unread.attributes["remedy"]) == ([2], how == "silent")


def test_where_no_rank_can_be_reached_the_pages_of_the_server_answer() -> None:
    hidden = dict.fromkeys(range(4), "gone")
    with debug_server("hung", ranks=hidden) as address:
        found = judged(address)
    assert found.suspects[0].ranks == [2]


@pytest.mark.long
def test_a_page_that_waits_for_a_silent_rank_is_not_asked_for_again() -> None:
    hidden = dict.fromkeys(range(4), "gone")
    pages = dict.fromkeys(("stacks", "fr_trace_json", "wait_counters"))
    with debug_server("hung", ranks=hidden, pages=pages) as address:
        found = judged(address)
    assert "it waits for silent ranks until its fetch_timeout" in missing(found)
    assert not found.suspects


@pytest.mark.parametrize("page", ["<html>another server</html>", "", "\x00\xff" * 500])
def test_what_is_no_debug_server_is_told(page: str) -> None:
    with debug_server("hung", pages={"tcpstore": page}) as address:
        found = judged(address)
    assert found.verdict == "undecided"
    assert "it is not torch's debug server" in missing(found)


def test_a_server_whose_store_does_not_answer_is_told() -> None:
    with debug_server("hung", pages={"tcpstore": None}) as address:
        found = judged(address)
    assert "accepted the connection but does not answer" in missing(found)


def test_nobody_at_the_address_is_told() -> None:
    found = judged("127.0.0.1:1")
    assert found.verdict == "undecided"
    assert "no debug server answers at 127.0.0.1:1" in missing(found)


@pytest.mark.parametrize("text", ["", "a b", "http://x:99999", "ftp://x:1", "file:///etc/passwd", "x:y"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        server_url(text)
    assert "--debug-server" in caught.value.help


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("node1", "http://node1:25999"),
        ("node1:4000", "http://node1:4000"),
        ("http://node1:4000/", "http://node1:4000"),
        ("[fe80::1]:4000", "http://[fe80::1]:4000"),
    ],
)
def test_an_address_needs_no_scheme_and_no_port(text: str, url: str) -> None:
    assert server_url(text) == url


def test_a_debug_server_and_another_job_are_not_mixed() -> None:
    with pytest.raises(UsageError, match="its own job"):
        investigate(["4242"], debug_server="127.0.0.1:1")


def test_the_waits_that_torch_counts_are_told() -> None:
    counters = {"pytorch.wait_counter.TCPStore__wait": {"active_count": 1, "total_calls": 3, "total_time_us": 5}}
    answers = {(2, "wait_counter_values"): json.dumps(counters)}
    with Store() as store, debug_server("hung", answers=answers) as address:
        found = investigate([], debug_server=address, store=store)
        rows = store.query("SELECT * FROM wait_counters WHERE rank = 2")
    assert [(row["counter"], row["active"], row["calls"]) for row in rows] == [
        ("pytorch.wait_counter.TCPStore__wait", 1, 3)
    ]
    said = [finding for finding in found.findings if finding.code == "rank.in_counted_wait"]
    assert [(finding.ranks, finding.attributes["counter"]) for finding in said] == [([2], "TCPStore__wait")]


def test_hostile_pages_name_nobody() -> None:
    page = b"debug_server/rank1: b'http://" + b"a" * 10_000 + b"'\n" + b"/" * 100_000 + b"\n" + b" \t" * 50_000
    assert workers_of_page(page) == []
    assert workers_of_page(b"    debug_server/rank1: b'file:///etc/passwd'\n") == []
    assert workers_of_page(b"    x/debug_server/rank1: b'http://n:1'\n") == [(1, "http://n:1")]


# --- found by itself


def job(*processes: dict[str, Any]) -> Job:
    common = {"cmdline": ["python", "train.py"], "name": "python", "env": {}, "state": "S", "readable": True}
    table = ProcessTable({"processes": [{**common, **process} for process in processes]}).processes
    members = [JobProcess("rank" if pid == 10 else "helper", process, 0) for pid, process in table.items()]
    return Job("torchrun", 1, 1, None, tuple(members))


RANK_0 = {"pid": 10, "ppid": 1, "listens": [29500, 40000]}


def test_the_front_end_is_the_port_that_only_a_child_of_rank_0_holds() -> None:
    assert server_of_job(job(RANK_0, {"pid": 11, "ppid": 10, "listens": [25999, 29500, 40000]})) == "127.0.0.1:25999"


@pytest.mark.parametrize(
    "child",
    [
        {"listens": [29500, 40000]},
        {"listens": None},
        {"listens": [25999, 6006]},
        {"listens": [6006], "cmdline": ["python", "-m", "tensorboard"]},
        {"listens": [25999], "ppid": 1},
    ],
)
def test_no_port_of_a_job_is_asked_that_may_be_anything_else(child: dict[str, Any]) -> None:
    assert server_of_job(job(RANK_0, {"pid": 11, "ppid": 10, **child})) is None
