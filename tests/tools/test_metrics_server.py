"""What a Prometheus server says about the time at which a job stopped: which events count, and which decide nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from constructed_records import as_torch, entry
from hypothesis import given
from hypothesis import strategies as st
from metrics_servers import MetricsServer, Recorded, metrics_server

from ddx_tools.evidence.store import Store
from ddx_tools.investigation.run import investigate
from ddx_tools.model.diagnosis import Diagnosis, Finding, ProbeStatus, Severity
from ddx_tools.model.errors import UnreadableInput, UsageError
from ddx_tools.parsers.machine.metrics_series import read_series, series_text
from ddx_tools.probes.host import metrics_capture
from ddx_tools.probes.host.findings import machine_findings
from ddx_tools.probes.host.metrics_capture import ask_server
from ddx_tools.probes.host.metrics_rows import series_rows
from ddx_tools.sources.bundle import Bundle, JournalEntry
from ddx_tools.sources.hosts.local import LocalHost
from ddx_tools.sources.raw import Raw

STOPPED_S = 1_790_000_000.0
HOSTS = ("node1", "node2")
BUSES = ("00000000:18:00.0", "00000000:AB:00.0")
BAD = (Severity.WARNING, Severity.FAILURE)
Change = tuple[float, float | None]


def gpu(host: str, index: int) -> dict[str, str]:
    """The labels of dcgm-exporter 4.2 (constructed: the names as in its source, the values made up)."""
    return {
        "gpu": str(index),
        "UUID": f"GPU-0000000{index}-1111-2222-3333-444444444444",
        "pci_bus_id": BUSES[index],
        "device": f"nvidia{index}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": host,
        "instance": f"{host}:9400",
        "job": "dcgm",
    }


def of_node(host: str, **labels: str) -> dict[str, str]:
    """The labels of node_exporter 1.9."""
    return {"instance": f"{host}:9100", "job": "node", **labels}


def cluster(*, hosts: tuple[str, ...] = HOSTS, without: tuple[str, ...] = ()) -> Recorded:
    """Hosts that are well, with counters that are high but do not grow. `without`: metrics to leave out."""
    recorded = Recorded(STOPPED_S - 1800, STOPPED_S + 1200)
    for host in hosts:
        for index in range(2):
            for name, value in (
                ("DCGM_FI_DEV_XID_ERRORS", 0.0),
                ("DCGM_FI_DEV_GPU_UTIL", 100.0),
                ("DCGM_FI_DEV_POWER_USAGE", 128.5),
                ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", 4.0),
                ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2.0),
                ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1.0),
                ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 17.0),
                ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 5.0),
            ):
                if name not in without:
                    recorded.add(name, value, **gpu(host, index))
        for name, value in (
            ("node_infiniband_link_downed_total", 14.0),
            ("node_vmstat_oom_kill", 3.0),
            ("node_network_receive_packets_total", 1e6),
            ("node_network_receive_drop_total", 5e4),
            ("node_network_receive_errs_total", 5e4),
        ):
            device = {"device": "mlx5_3", "port": "1"} if "infiniband" in name else {"device": "eth0"}
            if name not in without:
                recorded.add(name, value, **of_node(host, **({} if name == "node_vmstat_oom_kill" else device)))
        recorded.add("up", 1, instance=f"{host}:9400", job="dcgm")
        recorded.add("up", 1, instance=f"{host}:9100", job="node")
    return recorded


def with_series(name: str, value: float, *changes: Change, **labels: str) -> Recorded:
    """The same hosts, one of which has another history of this metric."""
    recorded = cluster()
    others = {key: text for key, text in labels.items() if key != "modelName"}
    recorded.metrics = [
        one
        for one in recorded.metrics
        if one.labels["__name__"] != name or any(one.labels.get(key) != text for key, text in others.items())
    ]
    recorded.add(name, value, *changes, **labels)
    return recorded


def asked(recorded: Recorded, hosts: tuple[str, ...] = HOSTS) -> tuple[list[Finding], Raw]:
    """What is found if a server with this history is asked about these hosts."""
    with metrics_server(recorded) as server:
        return asked_of(server.url, hosts)


def asked_of(url: str, hosts: tuple[str, ...] = HOSTS) -> tuple[list[Finding], Raw]:
    raw = ask_server(LocalHost("unknown"), url, [STOPPED_S], hosts)
    with Store() as store:
        store.insert(series_rows(raw))
        return machine_findings(store), raw


def bad(found: list[Finding]) -> list[str]:
    return sorted(finding.code for finding in found if finding.severity in BAD)


def only(found: list[Finding], code: str) -> Finding:
    (one,) = [finding for finding in found if finding.code == code]
    return one


# --- whole jobs: four ranks on two hosts, all blocked in one all_reduce


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """The flight records of a hung job, and NCCL's lines that name hosts and GPUs (constructed)."""
    folder = tmp_path / "job"
    folder.mkdir()
    ranks = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}}
    for rank in range(4):
        called_ns = int((STOPPED_S - 0.01 * rank) * 1e9)
        waiting = entry(
            state="started",
            time_created_ns=called_ns,
            time_discovered_started_ns=called_ns + 1,
            time_discovered_completed_ns=None,
            retired=False,
        )
        (folder / f"nccl_trace_rank_{rank}").write_bytes(as_torch(waiting, **ranks))
        place = f"node{1 + rank // 2}:81{rank}:81{rank} [{rank % 2}] NCCL INFO"
        set_up = f"comm 0x55d0c0de0 rank {rank} nranks 4 cudaDev {rank % 2} nvmlDev {rank % 2} "
        set_up += f"busId {('18000', 'ab000')[rank % 2]} commId 0x9e3b1c2d4f5a6b70"
        lines = [f"{place} ncclCommInitRank {set_up} - Init {word}" for word in ("START", "COMPLETE")]
        (folder / f"nccl_rank{rank}.log").write_text("\n".join(lines) + "\n")
    return folder


def fallen_off() -> Recorded:
    """GPU 1 of node2 fell off the bus 20 s before the job stopped."""
    return with_series("DCGM_FI_DEV_XID_ERRORS", 0, (STOPPED_S - 20, 79), **gpu("node2", 1))


def causes(diagnosis: Diagnosis) -> list[str]:
    return [cause.id for cause in diagnosis.causes]


@pytest.mark.slow
def test_an_xid_shortly_before_names_gpu_and_rank_and_a_bundle_says_so_again(hung: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    with metrics_server(fallen_off()) as server:
        found = investigate([str(hung)], save=bundle, prometheus=server.url)
    xid = only(found.findings, "gpu.xid")
    assert (xid.hosts, xid.attributes["devices"], xid.ranks) == (["node2"], ["0000:ab:00.0"], [3])
    assert "s before the job stopped" in xid.summary
    diagnosis = found.diagnose()
    assert causes(diagnosis)[:1] == ["gpu-fell-off-bus"]
    again = investigate([str(bundle)])
    assert causes(again.diagnose()) == causes(diagnosis)
    (quoted,) = only(again.findings, "gpu.xid").evidence
    names = {entry.path: entry.content for entry in _journal(bundle)}
    kept = (bundle / str(names[quoted.source])).read_text().splitlines()
    assert quoted.quote and kept[(quoted.line or 0) - 1].startswith(quoted.quote)


@pytest.mark.slow
def test_a_bundle_can_be_asked_about_later_and_healthy_hosts_decide_nothing(hung: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    alone = investigate([str(hung)], save=bundle).diagnose()
    with metrics_server(cluster()) as server:
        healthy = investigate([str(bundle)], prometheus=server.url)
        server.recorded = fallen_off()
        ill = investigate([str(bundle)], prometheus=server.url)
    assert (causes(healthy.diagnose()), healthy.diagnose().verdict) == (causes(alone), alone.verdict)
    assert causes(ill.diagnose())[:1] == ["gpu-fell-off-bus"]


@pytest.mark.slow
def test_an_xid_of_yesterday_decides_nothing(hung: Path) -> None:
    alone = investigate([str(hung)]).diagnose()
    with metrics_server(with_series("DCGM_FI_DEV_XID_ERRORS", 79.0, **gpu("node2", 1))) as server:
        found = investigate([str(hung)], prometheus=server.url)
    assert causes(found.diagnose()) == causes(alone)
    change = only(found.findings, "host.metric_changed")
    assert (change.severity, change.attributes["xid"], change.attributes["period"]) == (
        Severity.INFO,
        79,
        "long_before",
    )


def _journal(bundle: Path) -> list[JournalEntry]:
    with Bundle(bundle) as opened:
        return list(opened.manifest.journal)


# --- what counts


def test_counters_that_are_high_but_do_not_grow_say_nothing() -> None:
    found, raw = asked(cluster())
    assert [one.code for one in found] == []
    assert (raw.status, raw.missing) == (ProbeStatus.OK, [])


GROWING: list[tuple[str, dict[str, str], float, float, list[str]]] = [
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", gpu("node2", 1), 2, 3, ["gpu.memory_error"]),
    ("node_infiniband_link_downed_total", of_node("node2", device="mlx5_3", port="1"), 14, 16, ["network.link_errors"]),
    ("node_network_receive_errs_total", of_node("node2", device="eth0"), 5e4, 6e4, ["network.packet_loss"]),
    ("node_vmstat_oom_kill", of_node("node2"), 3, 4, ["host.oom_kill"]),
]


@pytest.mark.parametrize(("name", "labels", "before", "after", "codes"), GROWING, ids=[case[0] for case in GROWING])
def test_a_counter_counts_if_it_grew_before_the_job_stopped(
    name: str, labels: dict[str, str], before: float, after: float, codes: list[str]
) -> None:
    found, _ = asked(with_series(name, before, (STOPPED_S - 120, after), **labels))
    assert bad(found) == codes
    assert only(found, codes[0]).hosts == ["node2"]
    later, _ = asked(with_series(name, before, (STOPPED_S + 300, after), **labels))
    assert bad(later) == []


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("node_network_receive_drop_total", of_node("node2", device="eth0")),
        ("node_infiniband_port_discards_transmitted_total", of_node("node2", device="mlx5_3", port="1")),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", gpu("node2", 1)),
        ("DCGM_FI_DEV_POWER_VIOLATION", gpu("node2", 1)),
    ],
)
def test_a_counter_that_also_grows_on_healthy_hosts_decides_nothing(name: str, labels: dict[str, str]) -> None:
    found, _ = asked(with_series(name, 5, (STOPPED_S - 120, 50_005), **labels))
    change = only(found, "host.metric_changed")
    assert (bad(found), change.hosts, change.attributes["grown"]) == ([], ["node2"], 50_000)


def test_clocks_that_were_throttled_for_minutes_count_and_for_a_moment_do_not() -> None:
    name, labels = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", gpu("node2", 1)
    found, _ = asked(with_series(name, 4, (STOPPED_S - 300, 0x44), **labels))
    assert only(found, "gpu.throttled").attributes["reasons"] == ["hw_thermal_slowdown"]
    found, _ = asked(with_series(name, 4, (STOPPED_S - 300, 0x44), (STOPPED_S - 260, 4), **labels))
    assert bad(found) == []


def test_a_host_of_which_no_exporter_answers_is_down_and_one_exporter_alone_says_little() -> None:
    recorded = cluster(hosts=("node1",))
    for instance, job in (("node2:9400", "dcgm"), ("node2:9100", "node")):
        recorded.add("up", 1, (STOPPED_S - 60, 0), instance=instance, job=job)
    found, _ = asked(recorded)
    down = only(found, "host.out_of_service")
    assert (down.hosts, down.severity) == (["node2"], Severity.WARNING)
    recorded.metrics.pop()
    recorded.add("up", 1, instance="node2:9100", job="node")
    assert bad(asked(recorded)[0]) == []


def test_a_new_counter_of_a_target_that_was_read_before_is_an_event() -> None:
    labels = {"uuid": "GPU-5f3e1a70", "xid": "79", "gpud_component": "x", "instance": "node2:9400"}
    recorded = cluster()
    recorded.add("accelerator_nvidia_xid_errors_total", 0, (0, None), (STOPPED_S - 40, 1), **labels)
    assert only(asked(recorded)[0], "gpu.xid").attributes["devices"] == ["GPU-5f3e1a70"]


def test_a_target_that_was_not_read_before_has_no_events() -> None:
    recorded = cluster()
    recorded.metrics = [one for one in recorded.metrics if one.labels["instance"] != "node2:9400"]
    gone = ((STOPPED_S - 1700, None), (STOPPED_S - 60, 79.0))
    recorded.add("DCGM_FI_DEV_XID_ERRORS", 0, *gone, **gpu("node2", 1))
    recorded.add("up", 1, (STOPPED_S - 1700, 0), (STOPPED_S - 60, 1), instance="node2:9400", job="dcgm")
    found, _ = asked(recorded)
    assert (bad(found), only(found, "host.metric_changed").attributes["period"]) == ([], "long_before")


def test_an_exporter_that_restarts_counts_from_zero() -> None:
    name, labels = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", gpu("node2", 1)
    found, _ = asked(with_series(name, 2, (STOPPED_S - 300, 0), **labels))
    assert bad(found) == []


def test_an_xid_after_the_job_stopped_is_said_only() -> None:
    found, _ = asked(with_series("DCGM_FI_DEV_XID_ERRORS", 0, (STOPPED_S + 300, 43.0), **gpu("node2", 1)))
    change = only(found, "host.metric_changed")
    assert (bad(found), change.attributes["period"]) == ([], "after")
    assert "5 min after the job stopped" in change.summary


# --- whose hosts


def test_other_hosts_are_neither_asked_for_nor_counted() -> None:
    recorded = cluster(hosts=("node1", "node2", "node11"))
    recorded.add("DCGM_EXP_XID_ERRORS_COUNT", 0, (STOPPED_S - 30, 1), xid="79", **gpu("node11", 0))
    found, raw = asked(recorded)
    assert [one.code for one in found] == []
    assert b"node11" not in b"".join(item.data for item in raw.items)


def test_if_the_hosts_are_unknown_it_is_said_and_decides_nothing() -> None:
    found, raw = asked(fallen_off(), ())
    change = only(found, "host.metric_changed")
    assert (bad(found), change.hosts, change.attributes["xid"]) == ([], ["node2"], 79)
    assert "the hosts of the job are unknown" in raw.missing[-1].what


@pytest.mark.parametrize(
    ("known", "labels"),
    [
        ("llm-2", {"Hostname": "ip-10-0-0-7", "pod": "llm-2", "instance": "10.1.2.3:9400"}),
        ("node2.cluster.local", {"Hostname": "node2", "instance": "10.1.2.3:9400"}),
        ("node2", {"Hostname": "node2.cluster.local", "instance": "10.1.2.3:9400"}),
        ("worker=10.1.2.3", {"instance": "10.1.2.3:9400"}),
        ("fd00::7", {"instance": "[fd00::7]:9400"}),
    ],
)
def test_hosts_are_found_by_name_address_and_pod(known: str, labels: dict[str, str]) -> None:
    recorded = Recorded(STOPPED_S - 1800, STOPPED_S + 1200)
    recorded.add("DCGM_FI_DEV_XID_ERRORS", 0, (STOPPED_S - 20, 79), gpu="1", **labels)
    assert only(asked(recorded, (known,))[0], "gpu.xid").hosts == [known.partition("=")[0]]


def test_hosts_without_metrics_are_missing() -> None:
    _, raw = asked(cluster(hosts=("node1",), without=("DCGM_FI_DEV_XID_ERRORS",)), ("node1", "node2"))
    assert [gap.what.partition(" has ")[2] for gap in raw.missing] == ["no metrics of node2"]
    recorded = cluster(hosts=("node1",))
    recorded.metrics = [one for one in recorded.metrics if not one.labels["__name__"].startswith("DCGM")]
    _, raw = asked(recorded, ("node1",))
    assert "no GPU metrics" in raw.missing[0].what


# --- answers that are no answers


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    with metrics_server(cluster()) as running:
        yield running


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>Grafana</html>", "does not answer like Prometheus"),
        (200, b'{"status":"success","data":{"resultType":"vector","result":[]}}', "does not answer like Prometheus"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":3}]}}', "does not answer like"),
        (200, b"[" * 100_000, "does not answer like Prometheus"),
        (503, b'{"status":"error","errorType":"timeout","error":"query timed out"}', "503 Service Unavailable: query"),
        (404, b"not here", "404 Not Found"),
        (401, b"", "wants a password or token (401 Unauthorized)"),
        (302, b"", "redirects to another address (302)"),
    ],
)
def test_a_failure_is_said_once(server: MetricsServer, status: int, body: bytes, words: str) -> None:
    server.status, server.body = status, body
    server.headers = {"Location": "http://127.0.0.1:1/"} if status == 302 else {}
    found, raw = asked_of(server.url)
    assert (found, raw.status, len(raw.missing)) == ([], ProbeStatus.NO_DATA, 1)
    assert words in raw.missing[0].what


def test_a_refused_connection_and_a_silent_server_are_told_apart(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_capture, "_LIMIT_S", 0.5)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _, raw = asked_of(f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert "Connection refused" in raw.missing[0].what
    server.silent_about = ("",)
    _, raw = asked_of(server.url)
    assert "did not answer within 0.5 s" in raw.missing[0].what


def test_a_partial_answer_is_used_and_what_it_lacks_is_said(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_capture, "_LIMIT_S", 2.0)
    server.recorded = fallen_off()
    server.silent_about = ("node_infiniband_link_downed",)
    server.warnings = ["one store did not answer"]
    found, raw = asked_of(server.url)
    assert "gpu.off_bus" in bad(found)
    gaps = " ".join(gap.what for gap in raw.missing)
    assert "InfiniBand error counters of the metrics server" in gaps and "one store did not answer" in gaps
    assert raw.status is ProbeStatus.PARTIAL


def test_an_answer_that_is_too_large_is_refused(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_capture, "_MOST_BYTES", 1 << 10)
    _, raw = asked_of(server.url)
    assert any("the answer is larger than" in gap.what for gap in raw.missing)


def test_no_data_is_no_good_news(server: MetricsServer) -> None:
    server.recorded = Recorded(STOPPED_S - 10, STOPPED_S)
    found, raw = asked_of(server.url)
    assert (found, [gap.what.partition(" has ")[2] for gap in raw.missing]) == ([], ["no metrics of node1, node2"])


@pytest.mark.parametrize("token", ["s3cr3t-t0ken-of-the-team", "alice:hunter2-and-horse"])
def test_a_token_is_sent_and_never_kept(
    server: MetricsServer, hung: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    server.token = token
    monkeypatch.setenv("DDX_PROMETHEUS_TOKEN", token)
    found = investigate([str(hung)], save=tmp_path / "bundle", prometheus=server.url)
    assert server.asked and all(authorization in server.accepted() for _, _, authorization in server.asked)
    kept = b"".join(file.read_bytes() for file in (tmp_path / "bundle").rglob("*") if file.is_file())
    secrets = [token, *token.split(":"), *(value.split()[1] for value in server.accepted())]
    printed = json.dumps([finding.model_dump(mode="json") for finding in found.findings]) + str(found.missing)
    assert not [secret for secret in secrets if len(secret) > 5 and (secret.encode() in kept or secret in printed)]
    server.token = "another"
    _, raw = asked_of(server.url)
    assert "rejects the token (401 Unauthorized)" in raw.missing[0].what and token not in str(raw)


@pytest.mark.parametrize("url", ["http://alice:hunter2@prom:9090", "https://prom/?access_token=hunter2"])
def test_a_password_on_the_command_line_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        investigate([], prometheus=url)
    assert "hunter2" not in str(refused.value) and "DDX_PROMETHEUS_TOKEN" in refused.value.help


@pytest.mark.parametrize("url", ["prom:9090", "ftp://prom", "http://", "http://prom:9090/a b", "file:///etc/passwd"])
def test_what_is_no_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        investigate([], prometheus=url)


@pytest.mark.parametrize("stopped_s", [float("inf"), float("nan"), -1.0, 1e300])
def test_what_is_no_time_is_refused(stopped_s: float) -> None:
    with pytest.raises(UsageError):
        ask_server(LocalHost("unknown"), "http://127.0.0.1:1", [stopped_s], HOSTS)


# --- hostile answers and lines

_TEXT = st.text(max_size=30)
_VALUES = st.lists(st.tuples(st.floats(allow_nan=False), st.sampled_from(["1", "NaN", "+Inf", "9.3e18", "79", "-1"])))


@given(st.dictionaries(st.sampled_from(["__name__", "instance", "gpu", "xid", "job"]) | _TEXT, _TEXT), _VALUES)
def test_any_series_comes_back_or_is_left_out(metric: dict[str, str], values: list[tuple[float, str]]) -> None:
    answer = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": metric, "values": values}]}}
    try:
        text = series_text(json.dumps(answer).encode(), 15.0)
    except UnreadableInput:
        return
    for one in read_series(text):
        assert one.labels.get("instance", "") == metric.get("instance", "")
        assert all(abs(run.value) < 9.2e18 for run in one.runs)


@given(st.binary(max_size=200), st.text(max_size=100))
def test_any_bytes_are_an_error_or_lines(data: bytes, text: str) -> None:
    with pytest.raises(UnreadableInput):
        series_text(data, 15.0)
    line = f'DCGM_FI_DEV_XID_ERRORS{{Hostname="node1"}} {text} 79 from 2026-11-28T02:46:40Z to 9999-99-99T99:99:99Z'
    assert [one.runs for one in read_series(line.encode() + data)] in ([], [[]])


def test_the_journal_of_a_bundle_without_the_answer_is_no_failure(tmp_path: Path, hung: Path) -> None:
    """A bundle that lost the answers says so and is judged with the rest."""
    bundle = tmp_path / "bundle"
    with metrics_server(cluster()) as server:
        investigate([str(hung)], save=bundle, prometheus=server.url)
    for entry_ in _journal(bundle):
        if entry_.op == "metrics" and entry_.content:
            (bundle / entry_.content).unlink(missing_ok=True)
    assert any("metrics" in gap.what for gap in investigate([str(bundle)]).missing)
