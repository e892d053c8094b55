"""Probe `host`: a read-only capture of a machine, or the user's texts about one."""

from __future__ import annotations

from pydantic import Field

from ddx_tools.probes.declaration import Later, Probe, ProbeArgs
from ddx_tools.sources.host import Host
from ddx_tools.sources.raw import Raw, Rows, merge_rows


class HostArgs(ProbeArgs):
    """Arguments of `host`."""

    target: list[str] = Field(
        default_factory=list,
        description="Empty: this machine and the job on it. A pid: this machine as that process sees it. Or files "
        "with command output (df, lspci, nvidia-smi, dmesg, …), and directories of such files.",
    )
    prometheus: str = Field(
        default="",
        description="URL of a Prometheus-compatible server: ask it what exporters recorded about hosts before the job "
        "stopped, instead of capturing this machine. A token, or USER:PASSWORD, comes from DDX_PROMETHEUS_TOKEN.",
    )
    stopped_s: list[float] = Field(
        default_factory=list,
        max_length=2,
        description="With --prometheus: when the job stopped, in seconds since the epoch; two times for the first and "
        "the last possible one. Default: now.",
    )
    of_host: list[str] = Field(
        default_factory=list,
        max_length=10_000,
        description="With --prometheus: a host of the job, also as NAME=ADDRESS; repeatable. Without any, what the "
        "server says decides nothing.",
    )
    interval_s: float = Field(
        default=1.0,
        ge=0,
        le=60,
        description="Seconds between two readings of counters (packets, retransmissions, CPU quota); 0: one reading.",
    )


def capture(host: Host, args: HostArgs) -> Raw:
    """Capture the machine, or keep the given files that contain a text about one and ignore the others."""
    from ddx_tools.probes.host.capture import look, read_files

    if args.prometheus:
        from ddx_tools.probes.host.metrics_capture import ask_server

        return ask_server(host, args.prometheus, args.stopped_s, args.of_host)
    if args.paths:
        return read_files(host, args.paths)
    return look(host, [int(pid) for pid in args.target], args.interval_s)


def parse(raw: Raw) -> Rows:
    """Return the rows of `host_facts`."""
    from ddx_tools.probes.host.capture import text_rows
    from ddx_tools.probes.host.capture_rows import looked_rows
    from ddx_tools.probes.host.metrics_rows import series_rows

    return merge_rows([text_rows(raw), looked_rows(raw), series_rows(raw)])


PROBE = Probe(
    id="host",
    title="Machines",
    description=(
        "Captures this machine without changing anything: GPUs through NVML (errors, clocks, links, processes that "
        "hold memory), the kernel log, shared and locked memory, container limits with OOM kills and CPU quota, "
        "interfaces and the ones that NCCL and Gloo choose, what the host's name resolves to, RDMA ports, packets "
        "lost between two readings, connections with unread bytes. Lists what is unknown here separately from what is "
        "healthy. Or reads pasted command output about a machine: dmesg, journalctl -k, nvidia-smi with -q, topo -m "
        "and nvlink, df, free, ulimit, lspci -vvv, ibstat, ibv_devinfo, show_gids, perfquery, ip, ss, ethtool, ps, "
        "sacct, scontrol and squeue (also --json), dcgmi diag -j and health -j, GPUd's states and events, kubectl "
        "describe pod, and saved /metrics pages of dcgm-exporter, GPUd, node_exporter and xpu_timer; "
        "one file may contain several. With several hosts, it names the odd one."
    ),
    args=HostArgs,
    capture=capture,
    parse=parse,
    shell_only=frozenset({"prometheus", "stopped_s", "of_host"}),
    recognises={"machine text": Later("ddx_tools.probes.host.text_rows:recognises")},
    rests_on=("host_facts",),
    analyse=Later("ddx_tools.probes.host.findings:machine_findings"),
    table=Later("ddx_tools.probes.host.table:fact_table"),
    most_rows=60,
    rest="name fewer files, or ask the evidence store: SELECT * FROM host_facts",
    examples={
        "": "this machine, and the job on it",
        "48213": "this machine as the process 48213 sees it",
        "host.txt": "a file with pasted output of df, nvidia-smi, ibstat, dmesg, …",
        "node1.txt node2.txt": "two machines, to compare their MTU, links and GPUs",
        "diagnostics/ --json": "all such texts below a directory, as JSON",
    },
)
