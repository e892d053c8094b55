"""Findings about options in launch commands and batch scripts that affect how a job forms: what is set, not what it
causes.

Sources: torch 2.13 distributed/run.py; srun(1), sbatch(1) of Slurm 24.05 (`--gpus-per-task` implies
`--gpu-bind=per_task`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ddx_tools.knowledge.launch_facts import RANK_LAUNCHERS, Facts, dealing_option, facts_of, is_loopback
from ddx_tools.model.diagnosis import Finding, Severity
from ddx_tools.model.launch import Environment, Launch, Layer, Option, Value

DEFAULT_PORT = 29500
"""The default port of torchrun's static rendezvous, also used in init_process_group's examples."""
_TASK_NUMBER = re.compile(
    r"\$\{?(?:SLURM_LOCALID|SLURM_PROCID|LOCAL_RANK|RANK|OMPI_COMM_WORLD_LOCAL_RANK|MPI_LOCALRANKID|PMI_RANK)\}?"
)
_OWN_HOST = re.compile(
    r"^(?:\$\(|`)\s*(?:hostname|uname -n|ip (?:-\S+ )?(?:route|addr|a)\b)(?![^|]{0,40}NODELIST)"
    r"|^\$\{?(?:HOSTNAME|SLURMD_NODENAME)\}?$"
)
"""Commands and variables that give a host's own name or addresses."""
_NEIGHBOURS = ("tp", "ep", "cp")
"""Dimensions whose groups consist of neighbouring ranks and communicate in each layer."""
_BINDING = ("gpus_per_task", "tres_per_task", "ntasks_per_gpu", "gpu_bind")


def launch_findings(environment: Environment) -> Iterator[Finding]:
    """Yield the findings about the launch commands and batch directives of one environment."""
    for launch in environment.launches:
        facts = facts_of(environment, launch)
        for finding in _of_launch(environment, launch, facts):
            if not launch.certain:
                finding.attributes["certain"] = False
            yield finding
    if environment.batch.options and not environment.launches:
        yield from _gpus_of_tasks(environment.batch, environment.batch)
    yield from _gpu_of_task_by_variable(environment)
    yield from _endpoint_of_each_host(environment)


def _of_launch(environment: Environment, launch: Launch, facts: Facts) -> Iterator[Finding]:
    inner, srun = launch.layer(*RANK_LAUNCHERS), launch.layer("srun")
    starter = launch.layer(*RANK_LAUNCHERS, "srun", "mpirun")
    if facts.world and starter:
        yield _size(starter, facts)
    if facts.degrees:
        yield _degrees(launch, facts)
    if srun or environment.batch.options:
        yield from _gpus_of_tasks(srun or environment.batch, environment.batch)
    if srun and inner is None:
        yield from _dealt(srun, environment.batch, facts)
    if inner:
        yield from _starts(environment, launch, inner, facts)
        yield from _endpoint(environment, inner, facts)
    if facts.visible_gpus and facts.per_node and facts.per_node > facts.visible_gpus:
        yield _too_many(environment, launch, facts)
    for layer in launch.layers:
        if layer.tool == "docker":
            yield from container_findings(layer)
        elif layer.tool == "ulimit":
            yield from limit_findings(layer)


def _size(layer: Layer, facts: Facts) -> Finding:
    where = f" on {facts.nodes} hosts" if (facts.nodes or 1) > 1 else ""
    summary = f"{layer.tool} starts {facts.world} processes{where}."
    more = {"world_size": facts.world, "nodes": facts.nodes, "per_node": facts.per_node}
    return setting("size", summary, layer.tool, "", Severity.INFO, layer, **more)


def _degrees(launch: Launch, facts: Facts) -> Finding:
    layer = launch.layer("program") or launch.layers[-1]
    sizes = {degree.dimension: degree.size for degree in facts.degrees}
    listed = ", ".join(f"{name}={size}" for name, size in sizes.items())
    ones = [name for name, size in sizes.items() if size == 1]
    summary = f"The command sets the parallel dimensions {listed}."
    first = facts.degrees[0].option
    return setting(
        "degrees", summary, layer.program or layer.tool, "", Severity.INFO, first, degrees=sizes, ones=ones,
        dims=list(sizes),
    )  # fmt: skip


# --- Slurm


def _gpus_of_tasks(srun: Layer, batch: Layer) -> Iterator[Finding]:
    """Options under which a task sees its own GPUs only, numbered from 0."""
    for layer in [srun] if srun is batch else [srun, batch]:
        binding = next((o for name in _BINDING if (o := layer.option(name)) and _binds(o)), None)
        free = (layer.option("gpu_bind") or Option("", "", None, "")).value in ("none", "verbose,none", "v,none")
        if binding and not free:
            summary = (
                f"{layer.tool} gives each task its own GPUs ({binding.text.removeprefix('#SBATCH ')}): it sees no "
                "other, and its devices are numbered from 0."
            )
            yield setting("gpus_bound_to_task", summary, layer.tool, binding, Severity.NOTICE)


def _dealt(srun: Layer, batch: Layer, facts: Facts) -> Iterator[Finding]:
    option = dealing_option(srun, batch)
    if option is None or facts.nodes == 1 or facts.per_node == 1:
        return
    split = [degree.dimension for degree in facts.degrees if degree.dimension in _NEIGHBOURS and degree.size > 1]
    told = f": the groups of {', '.join(split)} then span hosts" if split else ""
    summary = f"{option.text} assigns ranks to hosts round-robin, so ranks 0 and 1 are on different hosts{told}."
    severity = Severity.WARNING if split else Severity.NOTICE
    yield setting("ranks_dealt_to_hosts", summary, option.tool, option, severity, dims=split)


def _gpu_of_task_by_variable(environment: Environment) -> Iterator[Finding]:
    """A finding about `CUDA_VISIBLE_DEVICES=$SLURM_LOCALID`."""
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value and value.value is None and _TASK_NUMBER.fullmatch(value.shown):
        summary = (
            f"CUDA_VISIBLE_DEVICES={value.shown} leaves each process one GPU, which is device 0 there: cuda:LOCAL_RANK "
            "names a device that does not exist."
        )
        yield setting("one_gpu_visible", summary, "environment", value, Severity.NOTICE)


def _binds(option: Option) -> bool:
    value = (option.value or "").lower()
    if option.name == "gpu_bind":
        return value not in ("", "none", "closest", "verbose", "v", "verbose,none", "v,none", "verbose,closest")
    return option.name != "tres_per_task" or "gpu" in value


def _starts(environment: Environment, launch: Launch, inner: Layer, facts: Facts) -> Iterator[Finding]:
    """Findings about how many times the launcher itself is started, and on how many hosts."""
    srun, batch = launch.layer("srun"), environment.batch
    tasks = next((o for layer in (srun, batch) if layer and (o := layer.option("ntasks_per_node"))), None)
    several = facts.per_node is None or facts.per_node > 1
    if srun and tasks and (tasks.number or 0) > 1 and several:
        summary = (
            f"srun starts {tasks.value} tasks per host, and each is a {inner.tool} that starts all processes of the "
            "host again."
        )
        yield setting("launcher_per_task", summary, tasks.tool, tasks, Severity.WARNING)
    hosts = batch.option("nodes")
    if hosts is None or hosts.number is None or facts.nodes is None:
        return
    if facts.nodes > 1 and len(launch.layers) and launch.layers[0] is inner and not _sent_elsewhere(environment):
        summary = f"{inner.tool} waits for {facts.nodes} hosts, but the batch script starts it only on its first host."
        yield setting("only_on_first_host", summary, inner.tool, "nnodes", Severity.WARNING, inner)
    if hosts.number > 1 and facts.nodes not in (1, hosts.number):
        summary = f"The job has {hosts.number} hosts, but {inner.tool} is started for {facts.nodes}."
        yield setting("nodes_differ", summary, inner.tool, "nnodes", Severity.WARNING, inner)


def _sent_elsewhere(environment: Environment) -> bool:
    """Whether another command in the script starts programs on other hosts."""
    return any(launch.layer("srun", "mpirun") for launch in environment.launches)


# --- how the processes find each other


def _endpoint(environment: Environment, inner: Layer, facts: Facts) -> Iterator[Finding]:
    spans = (facts.nodes or 1) > 1
    endpoint = inner.option("rdzv_endpoint", "master_addr", "main_process_ip")
    standalone = inner.option("standalone")
    if spans and endpoint and endpoint.value and is_loopback(endpoint.value):
        summary = f"{endpoint.text} is each host's own address, but the job spans {facts.nodes} hosts."
        yield setting("loopback_endpoint", summary, inner.tool, endpoint, Severity.WARNING)
    port = inner.option("master_port", "main_process_port")
    if standalone and port:
        summary = f"{port.text} has no effect with --standalone, which takes a free port."
        yield setting("port_ignored", summary, inner.tool, port, Severity.NOTICE)
    nodes = inner.option("nnodes")
    if standalone and nodes and (nodes.number or 1) > 1:
        summary = f"--standalone is for one host and overrides {nodes.text}."
        yield setting("standalone_on_several_hosts", summary, inner.tool, standalone, Severity.WARNING)
    if inner.tool == "torchrun" and not standalone:
        yield from _static_rendezvous(environment, inner, facts, port)


def _endpoint_of_each_host(environment: Environment) -> Iterator[Finding]:
    """A finding about `MASTER_ADDR=$(hostname)` evaluated on every host. In a batch script it gives the first host,
    which is right."""
    value = environment.get("MASTER_ADDR")
    if value is None or value.value is not None or not _OWN_HOST.search(value.shown):
        return
    spans = any((facts_of(environment, launch).nodes or 2) > 1 for launch in environment.launches)
    alone = not environment.batch.options and not any(launch.layer("srun", "mpirun") for launch in environment.launches)
    started = alone and any(_names_its_node(launch) for launch in environment.launches)
    if spans and (value.on_each_host or started):
        summary = (
            f"MASTER_ADDR={value.shown} is evaluated on every host and gives a different host on each: only the first "
            "host's processes find the store."
        )
        yield setting("own_host_endpoint", summary, "environment", value, Severity.WARNING)


def _names_its_node(launch: Launch) -> bool:
    """Whether the command is run once on each host, with a node rank that the text does not show."""
    inner = launch.layer(*RANK_LAUNCHERS)
    rank = inner.option("node_rank", "machine_rank") if inner else None
    return rank is not None and rank.value is None


def _static_rendezvous(
    environment: Environment, torchrun: Layer, facts: Facts, port: Option | None
) -> Iterator[Finding]:
    backend, endpoint = torchrun.option("rdzv_backend"), torchrun.option("rdzv_endpoint")
    static = backend is None or backend.value == "static"
    rank = torchrun.option("node_rank")
    if static and (facts.nodes or 1) > 1 and rank is None and environment.is_unset("PET_NODE_RANK"):
        summary = "No --node-rank is given: with the static rendezvous, each host acts as host 0."
        yield setting("node_rank_missing", summary, "torchrun", "node_rank", Severity.WARNING, torchrun)
    named = endpoint.value if endpoint and endpoint.value else ""
    if (port and port.number == DEFAULT_PORT) or named.endswith(f":{DEFAULT_PORT}"):
        option = port or endpoint
        assert option is not None
        summary = f"Port {DEFAULT_PORT} is the default of every torchrun: a second job on the host would need it too."
        yield setting("default_port", summary, "torchrun", option, Severity.INFO, port=DEFAULT_PORT)
    elif port is None and endpoint is None:
        summary = (
            f"No port is named: torchrun takes {DEFAULT_PORT} (since torch 2.12 a free one, if there is one host), and "
            "a second job on the host would need it too."
        )
        yield setting("default_port", summary, "torchrun", "master_port", Severity.INFO, torchrun, port=DEFAULT_PORT)


def _too_many(environment: Environment, launch: Launch, facts: Facts) -> Finding:
    value = environment.get("CUDA_VISIBLE_DEVICES")
    assert value is not None
    summary = (
        f"{facts.per_node} processes per host are started, but CUDA_VISIBLE_DEVICES={value.shown} leaves "
        f"{facts.visible_gpus} GPUs."
    )
    layer = launch.layer(*RANK_LAUNCHERS, "srun", "mpirun") or launch.layers[0]
    return setting(
        "more_processes_than_gpus", summary, layer.tool, "CUDA_VISIBLE_DEVICES", Severity.WARNING, value,
        processes=facts.per_node, gpus=facts.visible_gpus,
    )  # fmt: skip


# --- shared memory, locked memory and open files, as containers and scripts set them
# Sources: docker-run(1) of Docker 27 (`--shm-size` is 64 MiB by default); getrlimit(2) and bash's `ulimit`, which
# counts locked memory in KiB.

_DOCKER_SHM_BYTES = 64 << 20
_LITTLE_SHM_BYTES = 1 << 30
_FEW_FILES = 4_096
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,3})?)\s?([bkmgt]?)b?", re.I)
_UNITS = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def container_findings(docker: Layer) -> Iterator[Finding]:
    """Yield findings about the /dev/shm and locked-memory options of `docker run`."""
    shm, ipc = docker.option("shm_size"), docker.option("ipc")
    shared = ipc is not None and (ipc.value or "").startswith(("host", "container:", "shareable"))
    if ipc is not None and ipc.value == "host":
        summary = "The container shares /dev/shm with its host (--ipc=host)."
        yield setting("shm_of_host", summary, "docker", ipc, Severity.INFO)
    elif shm is None and not shared and not _mounts_shm(docker):
        summary = "The container is started without --shm-size or --ipc: its /dev/shm has 64 MiB."
        yield setting(
            "shm_default", summary, "docker", "shm_size", Severity.NOTICE, docker, size_bytes=_DOCKER_SHM_BYTES
        )
    elif shm is not None and (size := size_bytes(shm.value)) is not None:
        little = size < _LITTLE_SHM_BYTES
        summary = f"The container's /dev/shm has {size / (1 << 30):.3g} GiB ({shm.text})."
        severity = Severity.NOTICE if little else Severity.INFO
        yield setting("shm_small" if little else "shm_size", summary, "docker", shm, severity, size_bytes=size)
    yield from _memlock(docker)


def _memlock(docker: Layer) -> Iterator[Finding]:
    for option in docker.options:
        found = re.fullmatch(r"memlock=(\d{1,18})(?::-?\d{1,18})?", option.value or "")
        if found and option.name == "ulimit":
            summary = f"The container may lock {int(found[1]) / (1 << 20):.3g} MiB of memory ({option.text})."
            yield setting("memlock_limit", summary, "docker", option, Severity.NOTICE, size_bytes=int(found[1]))


def _mounts_shm(docker: Layer) -> bool:
    mounts = (option.value or "" for option in docker.options if option.name in ("volume", "mount", "tmpfs"))
    return any("/dev/shm" in mount for mount in mounts)


def size_bytes(text: str | None) -> int | None:
    """Return a size such as `8g`, `1024m` or `64MB` in bytes; None for anything else."""
    found = _SIZE.fullmatch(text.strip()) if text else None
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()])) if found else None


def limit_findings(ulimit: Layer) -> Iterator[Finding]:
    """Yield findings about a script's `ulimit` commands, only for limits that jobs run into."""
    for option in ulimit.options:
        if option.name == "l" and option.number is not None:
            summary = f"The script lets processes lock {option.number} KiB of memory ({option.text}); RDMA needs more."
            yield setting(
                "memlock_limit", summary, "ulimit", option, Severity.NOTICE,
                size_bytes=option.number << 10,
            )  # fmt: skip
        elif option.name == "n" and option.number is not None and option.number < _FEW_FILES:
            summary = f"The script lets processes open {option.number} files ({option.text})."
            yield setting("open_files_limit", summary, "ulimit", option, Severity.NOTICE)


# --- the common form of launch findings


def setting(
    meaning: str,
    summary: str,
    tool: str,
    option: Option | Value | str,
    severity: Severity,
    at: Option | Value | Layer | None = None,
    **more: Any,
) -> Finding:
    """Build a `launch.setting` finding about one option or variable that affects how a job starts.

    `meaning` is one of the words that the documentation of that finding code lists; `tool` is the program that reads
    the option. The evidence is the line of `at` or, without it, the option's own.
    """
    name, value = option if isinstance(option, str) else option.name, None
    if not isinstance(option, str):
        value, at = option.shown if isinstance(option, Value) else option.value, at or option
    name = f"--{name.replace('_', '-')}" if name and not name.isupper() else name
    attributes = {"meaning": meaning, "tool": tool, "option": name, "value": value, **more}
    evidence = [at.evidence] if at else []
    return Finding(code="launch.setting", severity=severity, summary=summary, evidence=evidence, attributes=attributes)
