"""When a job stopped, according to its records, stacks and logs; and of which hosts a metrics server is asked."""

from __future__ import annotations

from typing import Any

import pytest

from ddx_tools.analysis.ranks.silence import StoppedAt, silence_of
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.session.metrics import metrics_question
from ddx_tools.probes.host.metrics_capture import Window
from ddx_tools.sources.hosts.local import LocalHost

T = 1_790_000_000.0
Rows = dict[str, list[dict[str, Any]]]
STEPS: Rows = {
    "log_events": [
        {"kind": "step", "time_s": T - 40, "source": "a.log"},
        {"kind": "step", "time_s": T, "source": "a.log"},
        {"kind": "step", "time_s": T - 5000, "source": "b.log"},
    ]
}


def log_of(written_s: float) -> dict[str, Any]:
    return {"path": "a.log", "source": "a.log", "written_ns": int(written_s * 1e9)}


def silence(*rows: Rows) -> StoppedAt | None:
    with Store() as store:
        for some in rows:
            store.insert(some)
        return silence_of(store)


def test_the_first_and_the_last_rank_to_fall_silent_are_the_bounds() -> None:
    dumps = [{"rank": rank, "last_call_ns": int((T + rank) * 1e9)} for rank in range(4)]
    earlier = {"rank": 0, "last_call_ns": int((T - 9000) * 1e9)}
    found = silence({"fr_dumps": [*dumps, earlier]}, STEPS)
    assert found and (found.first_s, found.last_s, found.zone_known) == (T, T + 3, True)


def test_a_rank_that_ended_hours_earlier_does_not_move_the_time_by_hours() -> None:
    dumps = [{"rank": rank, "last_call_ns": int((T - 9000 * rank) * 1e9)} for rank in range(2)]
    found = silence({"fr_dumps": dumps})
    assert found and (found.first_s, found.last_s) == (T - 3600, T)


def test_a_blocked_rank_has_been_silent_since_it_last_ran() -> None:
    blocked = {"role": "rank", "is_main": True, "operation": "all_reduce", "taken_s": T + 600, "blocked_s": 600.0}
    found = silence({"stack_threads": [blocked, {**blocked, "role": "launcher", "blocked_s": 9000.0}]})
    assert found and (found.first_s, found.last_s) == (T, T)


def test_a_watchdog_tells_how_long_it_waited() -> None:
    watchdog = {"kind": "watchdog", "time_s": T + 600, "details": '{"elapsed_ms": "600000"}', "source": "a.log"}
    found = silence({"log_events": [watchdog]}, STEPS)
    assert found and (found.first_s, found.basis) == (T, "the wait that the watchdog reports")


def test_an_impossible_time_shows_nothing() -> None:
    watchdog = {"kind": "watchdog", "time_s": T, "details": '{"elapsed_ms": "9000000000000000000"}', "source": "a.log"}
    found = silence({"log_events": [watchdog]})
    assert found and (found.first_s, found.basis) == (T, "the first failure in the logs")


def test_after_the_last_step_the_next_one_may_have_begun() -> None:
    found = silence(STEPS)
    assert found and (found.first_s, found.last_s, found.zone_known) == (T, T + 40, False)


@pytest.mark.parametrize(
    ("written_s", "first_s", "known"), [(T + 2, T, True), (T - 7198, T - 7200, True), (T + 777, T, False)]
)
def test_the_time_of_a_logs_file_shows_its_time_zone(written_s: float, first_s: float, known: bool) -> None:
    found = silence(STEPS, {"materials": [log_of(written_s)]})
    assert found and (found.first_s, found.zone_known) == (first_s, known)


def test_a_failure_of_an_earlier_attempt_is_not_when_it_stopped() -> None:
    failure = {"kind": "traceback", "time_s": T, "source": "a.log"}
    assert silence({"log_events": [{**failure, "superseded": True}]}) is None
    found = silence({"log_events": [failure]})
    assert found and found.first_s == T


def question(*rows: Rows, live: bool = False) -> Any:
    with Store() as store:
        for some in rows:
            store.insert(some)
        return metrics_question(store, "http://prom:9090", LocalHost("unknown"), live=live)


def test_hosts_come_from_all_evidence_and_addresses_only_if_they_are_unique() -> None:
    asked = question(
        {"ranks": [{"host": "node1", "rank": 0, "role": "rank", "world_size": 2}]},
        {
            "asked_hosts": [
                {"target": "node2", "state": "unreachable"},
                {"target": "idle", "state": "answered", "jobs": 0},
            ]
        },
        {"fr_dumps": [{"host": "unknown", "rank": 1}]},
        {
            "host_facts": [
                {"host": host, "topic": "interface", "facts": f'{{"addresses": ["127.0.0.1", "172.17.0.1", "{own}"]}}'}
                for host, own in (("node1", "10.0.0.1"), ("node2", "10.0.0.2"))
            ]
        },
    )
    assert asked.step.args["of_host"] == ["node1", "node2", "node1=10.0.0.1", "node2=10.0.0.2"]
    assert asked.missing == []


def test_ranks_on_unknown_hosts_are_missing() -> None:
    asked = question({"ranks": [{"host": "node1", "rank": 0, "role": "rank", "world_size": 8}]})
    assert [gap.what for gap in asked.missing] == [
        "the hosts of 7 of 8 ranks are unknown: no metrics of them were asked"
    ]


def test_without_any_time_the_last_minutes_count_or_those_before_the_newest_file() -> None:
    newest: Rows = {"materials": [log_of(T)]}
    assert question(newest).step.args["stopped_s"] == [T, T]
    assert question(newest, live=True).step.args["stopped_s"] == []
    window = Window.around([], T)
    assert (window.start_s, window.counted_s, window.end_s) == (T - 900, T, T)


def test_the_window_ends_ten_minutes_after_the_job_stopped_or_now() -> None:
    window = Window.around([T, T + 30], T + 90_000)
    assert (window.start_s, window.stopped_s, window.counted_s, window.end_s) == (T - 900, T, T + 90, T + 630)
    assert Window.around([T], T + 5).end_s == T + 5


@pytest.mark.parametrize(("hosts", "said"), [(1_000, []), (1_200, ["the first 1000 of 1200 names of hosts"])])
def test_hosts_beyond_the_bound_are_said_to_be_left_out(hosts: int, said: list[str]) -> None:
    ranks = [{"host": f"n{rank}", "rank": rank, "role": "rank", "world_size": hosts} for rank in range(hosts)]
    asked = question({"ranks": ranks})
    assert len(asked.step.args["of_host"]) == 1_000
    assert [words for one in asked.missing for words in said if words in one.what] == said
    assert len(asked.missing) == len(said)
