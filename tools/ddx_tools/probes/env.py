"""Probe `env`: the environment of the ranks and the commands that start them."""

from __future__ import annotations

import json
import re
from typing import Any

from ddx_tools.environment.findings import environment_findings, judged
from ddx_tools.environment.knowledge import variables
from ddx_tools.environment.live import package_patterns, process_rows, version_rows
from ddx_tools.environment.read import read_file
from ddx_tools.environment.rows import environments, rows_of_file
from ddx_tools.environment.versions import Versions
from ddx_tools.errors import HostError, NotFound
from ddx_tools.formats.launchers import find_jobs
from ddx_tools.hosts.base import Host
from ddx_tools.job_target import select_job
from ddx_tools.model import ProbeStatus
from ddx_tools.probe import Probe, ProbeArgs, Raw, RawItem, Rows, merge_rows
from ddx_tools.store import Store

_FILE_BYTES = 256 << 10
_LOG_BYTES = 64 << 10
"""Of a log the beginning, where the launch command stands."""
_FILES_LIMIT = 500
_UNKNOWN_HOST = "unknown"
# What lies in a training directory and is neither text nor about launching.
_NOT_TEXT = re.compile(
    r"\.(?:bin|bz2|ckpt|csv|distcp|gif|gz|h5|ipynb|jpe?g|jsonl|mp4|np[yz]|onnx|parquet|pdf|pickle|pipe|pkl|png|pth?|pyc?"
    r"|safetensors|so|sock|svg|tar|toml|whl|xz|zip|zst)$",
    re.I,
)
_LOG = re.compile(r"\.(?:log|out|err|stderr|stdout)(?:\.\d+)?$|(?:^|/)(?:stdout|stderr)[^/]*$", re.I)


class EnvArgs(ProbeArgs):
    """The target: printed environments, launch scripts, manifests, directories of them, or a pid of a live job."""


def capture(host: Host, args: EnvArgs) -> Raw:
    """The environments of a live job's ranks, or those of files; a file that holds none is left to other probes."""
    raw = Raw(host.name)
    paths = [item for item in args.target if not item.isdigit()]
    if not paths:
        _capture_job(host, args, raw)
        return raw
    files = list(dict.fromkeys(file for path in paths for file in _texts_below(host, path)))
    for file in sorted(files, key=lambda file: bool(_LOG.search(file)))[:_FILES_LIMIT]:
        _read(host, raw, file)
    if len(files) > _FILES_LIMIT:
        raw.problems.append(f"{len(files)} files: only {_FILES_LIMIT} were read. Name a smaller directory.")
        raw.status = ProbeStatus.PARTIAL
    raw.searched.append(f"{len(raw.items)} files with environments or launch commands among {len(files)}")
    if not raw.items:
        raw.status = ProbeStatus.NO_DATA
    return raw


def _texts_below(host: Host, path: str) -> list[str]:
    return [file for file in host.files_below(path) if file == path or not _NOT_TEXT.search(file)]


def _read(host: Host, raw: Raw, path: str) -> None:
    try:
        reply = host.read(path, max_bytes=_LOG_BYTES if _LOG.search(path) else _FILE_BYTES)
    except NotFound:
        return
    except HostError as error:
        raw.failed(path, error, "What this file says of the job's settings is not known.")
        return
    if read_file(path, reply.data[:_FILE_BYTES]):
        raw.items.append(RawItem("file", reply.data[:_FILE_BYTES], reply.source or path, {"path": path}))


def _capture_job(host: Host, args: EnvArgs, raw: Raw) -> None:
    reply = host.processes()
    snapshot = json.loads(reply.data)
    job = select_job(find_jobs(snapshot), args.target)
    raw.items.append(RawItem("processes", reply.data, reply.source, {"job": job.id}))
    raw.searched.append(f"the environments of {len(job.live)} ranks of {job.id}")
    for pattern in package_patterns(job):
        try:
            found = host.glob(pattern)
        except HostError:  # an older bundle: nobody asked
            continue
        raw.items.append(RawItem("packages", json.dumps(found).encode(), reply.source))
    hidden = len(job.ranks) - len(job.live)
    if hidden:
        raw.status = ProbeStatus.PARTIAL
        raw.problems.append(f"{hidden} ranks of {job.id} have no environment that could be read.")


def parse(raw: Raw) -> Rows:
    """Rows of `env_values`, `launch_options` and `env_versions`."""
    return merge_rows(_rows(item, raw.host) for item in raw.items)


def _rows(item: RawItem, host: str) -> Rows:
    if item.kind == "file":
        return rows_of_file(read_file(item.facts["path"], item.data), item.facts["path"], item.source)
    if item.kind == "packages":
        return {"env_versions": version_rows(map(str, json.loads(item.data)), host, item.source)}
    jobs = [job for job in find_jobs(json.loads(item.data)) if job.id == item.facts["job"]]
    return merge_rows(process_rows(job, host, item.source) for job in jobs)


def _table(store: Store) -> list[dict[str, Any]]:
    """Variable, value, who, verdict: what deserves a word first."""
    verdicts: dict[tuple[str, str, str], list[str]] = {}
    for environment, word in judged(store):
        verdicts.setdefault((environment.id, word.name, word.shown), []).append(word.problem)
    shown: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in store.query("SELECT * FROM env_values ORDER BY name, rank NULLS LAST, label, source_line"):
        verdict = ", ".join(dict.fromkeys(verdicts.get((row["environment"], row["name"], row["shown"]), [])))
        key = (row["name"], row["shown"], verdict)
        known = shown.setdefault(
            key, {"variable": row["name"], "value": row["shown"], "who": [], "verdict": verdict, "ranks": []}
        )
        (known["ranks"] if row["rank"] is not None else known["who"]).append(
            row["rank"] if row["rank"] is not None else row["label"]
        )
    versions = next((one.versions for one in environments(store)), Versions())
    ordered = sorted(shown.values(), key=lambda row: (not row["verdict"], row["variable"], row["value"]))
    return [
        {
            "variable": row["variable"],
            "value": row["value"],
            "ranks": sorted(set(row["ranks"])) or None,
            "who": ", ".join(dict.fromkeys(row["who"])) or None,
            "verdict": row["verdict"],
            "default": _default(row["variable"], versions),
        }
        for row in ordered
    ]


def _default(name: str, versions: Versions) -> str | None:
    """In the version that runs, if it is known or does not matter."""
    known = variables().get(name)
    return known.default_in(versions.of(known.library)) if known else None


PROBE = Probe(
    id="env",
    title="Environment and launch command",
    description=(
        "Checks the environment variables and the launch command of a distributed job: names that nothing reads (with "
        "the one that was meant), values that are out of range or not understood, what has no effect in the version "
        "that runs, what is deprecated, contradicts or endangers, what an old debugging session left behind, what "
        "differs between ranks or hosts, how GPUs are bound to tasks, whether the parallel dimensions fit the number "
        "of processes, and what is missing for the next hang to be diagnosable. Reads live ranks, printed "
        "environments (`env`, `printenv`, `export -p`, JSON), shell and sbatch scripts, docker, Kubernetes and Compose "
        "settings, and launch commands in notes. Executes nothing; secrets are not shown."
    ),
    args=EnvArgs,
    finding_codes=(
        "config.suspicious",
        "config.differs",
        "config.not_diagnosable",
        "launch.setting",
        "mesh.size_mismatch",
    ),
    capture=capture,
    parse=parse,
    analyse=environment_findings,
    table=_table,
    examples={
        "": "the ranks of the job on this host",
        "train.sbatch": "a script, without running it",
        "node1.env node2.env": "what `env` printed on two hosts, compared",
        "48213 --json": "the job of one process, as JSON",
    },
)
