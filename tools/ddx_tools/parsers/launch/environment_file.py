"""Reads environments, launch commands and versions from a user's file, if it has any.

Content decides what a file is; names help if the content is ambiguous. From logs and notes, only whole launch commands
are taken: a variable that is merely mentioned ("works with NCCL_P2P_DISABLE=1") was not set.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from ddx_tools.knowledge.variables import is_of_interest
from ddx_tools.model.launch import Value
from ddx_tools.model.versions import VersionSeen, versions_in
from ddx_tools.parsers.launch.env_text import Listing, read_listings, share_of_assignments
from ddx_tools.parsers.launch.foreign_yaml import load_foreign_yaml
from ddx_tools.parsers.launch.launch_command import CommandLayer, CommandOption, layers_of
from ddx_tools.parsers.launch.shell_script import Assignment, Command, Script, read_script
from ddx_tools.parsers.launch.shell_words import HOLE, is_known, shown

_SCRIPT_NAME = re.compile(r"\.(?:sh|bash|zsh|sbatch|slurm|srun|job|batch|pbs|qsub)$", re.I)
_SHEBANG = re.compile(r"#! ?\S*/(?:env )?(?:ba|z|da|k)?sh\b")
_EXPORT = re.compile(r"^(?:export|declare -x|typeset -x) +\w+=", re.M)
_BATCH = re.compile(r"^#SBATCH\s", re.M)
_MOSTLY = 0.6
_STARTERS = (
    r"torchrun|srun|mpirun|mpiexec(?:\.hydra)?|deepspeed|accelerate +launch|accelerate-launch"
    r"|(?:docker|podman|nerdctl) +run|(?:singularity|apptainer) +exec"
    r"|python[\d.]* +(?:-[uOEsB]+ +){0,3}-m +(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch"
    r"|deepspeed\.launcher\.\w+)"
)
_PREFIX = r"(?:[A-Za-z_]\w{0,80}=[^\s]{0,300} +){0,30}"
_EMBEDDED = re.compile(
    rf"(?:^|(?<=[\s`$+>:;=(\"']))(?P<command>{_PREFIX}(?:[\w./~-]{{0,200}}/)?(?:{_STARTERS})(?= ).*)", re.M
)
_PARALLEL = re.compile(
    rf"^[ \t]*(?:[$+>] )?(?P<command>{_PREFIX}[\w./~-]{{1,200}} "
    r".*--[\w.-]{0,60}(?:parallel|dp_|tp|pp|cp)[\w-]{0,40}[= ].*)",
    re.M,
)
_IN_TEXT = (
    (re.compile(rf"(?:{_STARTERS}) "), _EMBEDDED),
    (re.compile(r"--[\w.-]{0,60}(?:parallel|dp_|tp|pp|cp)"), _PARALLEL),
)
"""Commands in text, each with a necessary part that is much faster to search for and missing from most texts."""
_COMMAND_CHARS = 4_000
_MOST_EMBEDDED = 50
_MOST_LOOKED_AT = 500


@dataclass
class Found:
    """The environments and versions found in one file."""

    environments: list[FoundEnvironment] = field(default_factory=list)
    versions: list[VersionSeen] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.environments or self.versions)


@dataclass
class FoundEnvironment:
    """One environment in a file; lines count from 1."""

    kind: str
    label: str = ""
    whole: bool = False
    host: str | None = None
    rank: int | None = None
    values: list[Value] = field(default_factory=list)
    batch: list[tuple[CommandOption, int]] = field(default_factory=list)
    launches: list[FoundLaunch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.values or self.batch or self.launches)


@dataclass(frozen=True)
class FoundLaunch:
    """A command that starts ranks."""

    layers: list[CommandLayer]
    line: int
    certain: bool


@lru_cache(maxsize=16)  # the readers of launches and of meshes call it in turn
def read_file(path: str, data: bytes) -> Found:
    """Return the environments and launches in a file. Accepts any bytes; other kinds of files give an empty result."""
    if b"\0" not in data:
        text = data.decode("utf-8", "replace")
        if _is_script(path, text):
            return Found(_nonempty([_of_script(read_script(text), text)]), list(versions_in(text)))
        if layer := accelerate_layer(text):
            launch = FoundLaunch([layer], 1, True)
            return Found([FoundEnvironment("manifest", launches=[launch])])
        if _looks_listed(text):
            found = _nonempty(_of_listing(listing) for listing in read_listings(data))
            if found:
                return Found(found, list(versions_in(text)))
        return Found(_nonempty([_of_text(text)]), list(versions_in(text)))
    found = _nonempty(_of_listing(listing) for listing in read_listings(data))
    return Found(found)


def _nonempty(found: Iterator[FoundEnvironment] | list[FoundEnvironment]) -> list[FoundEnvironment]:
    return [environment for environment in found if environment]


def _is_script(path: str, text: str) -> bool:
    if _SHEBANG.match(text) or _BATCH.search(text):
        return True
    # `export -p` and files to be sourced are scripts too; most of their lines are assignments or commands.
    return bool(_SCRIPT_NAME.search(path) or _EXPORT.search(text)) and not _reads_like_a_log(text)


def _reads_like_a_log(text: str) -> bool:
    """Whether a text has lines that no script has: starting with stamps, levels, progress bars or tracebacks."""
    lines = [line for line in text.splitlines() if line.strip()][:400]
    odd = sum(1 for line in lines if _LOG_LINE.match(line))
    return odd > 0.2 * len(lines)


_LOG_LINE = re.compile(
    r"\[?\d{4}-\d\d-\d\d|\[(?:rank|INFO|default)\w*|(?:INFO|WARNING|ERROR|DEBUG)\b|Traceback|  File \"|\s*\d+%\|"
)


def _looks_listed(text: str) -> bool:
    return text.lstrip()[:1] in ("{", "[") or bool(
        re.search(r"^[ \t-]*\"?(?:env|environment|Env)\"?:|^\s*ENV\s", text, re.M)
        or share_of_assignments(text) >= _MOSTLY
    )


def _of_listing(listing: Listing) -> FoundEnvironment:
    found = FoundEnvironment("manifest" if listing.declared else "listing", listing.label, listing.is_whole)
    if not listing.declared:
        said = {value.name: value.value for value in listing.values}
        # The label comes from a tool that queried several hosts or tasks at once.
        of_host = listing.label if listing.label and not listing.label.startswith("task ") else None
        found.host = of_host or said.get("SLURMD_NODENAME") or said.get("HOSTNAME")
        rank = said.get("RANK") or ""
        found.rank = int(rank) if re.fullmatch(r"[0-9]{1,7}", rank) else None
    found.values = [
        Value(value.name, value.value, value.value if value.value is not None else "?", line=value.line)
        for value in listing.values
        if is_of_interest(value.name)
    ]
    return found


# --- scripts and commands


def _of_script(script: Script, text: str) -> FoundEnvironment:
    found = FoundEnvironment("script")
    has_commands = any(command.words[0] not in ("set", "source", ".", "cd") for command in script.commands)
    everything = not has_commands or re.search(r"^\s*set +(?:-a|-o +allexport)\b", text, re.M) is not None
    found.values += [_of_assignment(a, exported=a.exported or everything) for a in script.assignments]
    found.batch = [(_directive(d.option, d.value), d.line) for d in script.directives]
    for command in script.commands:
        _add_command(found, command)
    found.values = [value for value in found.values if is_of_interest(value.name)]
    return found


def _of_assignment(assignment: Assignment, *, exported: bool) -> Value:
    told = (assignment.name, assignment.value, assignment.shown, assignment.certain)
    return Value(*told, exported, line=assignment.line)


def _directive(option: str, value: str | None) -> CommandOption:
    short = {"N": "nodes", "n": "ntasks", "c": "cpus_per_task", "G": "gpus"}
    name = option.lstrip("-").replace("-", "_")
    return CommandOption(short.get(name, name), value, f"#SBATCH {option}" + (f"={value}" if value else ""))


def _add_command(found: FoundEnvironment, command: Command) -> None:
    layers = _limits(command) or layers_of(command.words)
    for assignment in command.variables:
        found.values.append(_of_assignment(assignment, exported=True))
    for layer in layers:
        found.values += _handed_over(layer, command)
    if any(layer.tool in _ON_EACH_HOST for layer in layers):
        found.values += _set_there(command)
    if layers:
        found.launches.append(FoundLaunch(layers, command.line, command.certain))


def _set_there(command: Command) -> Iterator[Value]:
    """Variables set in `srun bash -c 'export NAME=…; torchrun …'`. In double quotes, the script's own shell expands
    them earlier."""
    for flag, inner in itertools.pairwise(command.words):
        if re.fullmatch(r"-[a-z]*c", flag) and HOLE not in inner:
            script = read_script(inner, command.line)
            handed = [assignment for one in script.commands for assignment in one.variables]
            found = [_of_assignment(assignment, exported=assignment.exported) for assignment in script.assignments]
            found += [_of_assignment(assignment, exported=True) for assignment in handed]
            yield from (replace(value, on_each_host=True) for value in found)


def _limits(command: Command) -> list[CommandLayer]:
    """The limits set by `ulimit -l unlimited`, `ulimit -Sn 65536`."""
    if command.words[0] != "ulimit" or len(command.words) < 2 or not is_known(command.words[1]):
        return []
    letter = command.words[1].lstrip("-").strip("SH")
    value = command.words[2] if len(command.words) > 2 and is_known(command.words[2]) else None
    return [CommandLayer("ulimit", [CommandOption(letter, value, command.text)])]


_ON_EACH_HOST = ("srun", "mpirun")
_HANDING = {
    "docker": ("env",),
    "mpirun": ("export_variable", "export_pair"),
    "apptainer": ("env",),
    "srun": ("export",),
}


def _handed_over(layer: CommandLayer, command: Command) -> Iterator[Value]:
    """Variables passed by `docker -e NAME=value`, `mpirun -x NAME=value`, `-genv NAME value`, `srun
    --export=ALL,NAME=value`."""
    for option in layer.options:
        if option.name not in _HANDING.get(layer.tool, ()):
            continue
        words = option.shown.partition(" ")[2] or option.shown.partition("=")[2]
        pairs = words.split(",") if option.name == "export" else [words.replace(" ", "=", 1)]
        for pair in pairs:
            name, equals, value = pair.partition("=")
            if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
                known = option.value is not None
                yield Value(name, value if known else None, value, command.certain, line=command.line)


def _of_text(text: str) -> FoundEnvironment:
    """The launch commands in a log or in notes, each with its continuation lines."""
    found = FoundEnvironment("text")
    joined = text.replace("\\\n", " \v")  # same length, so positions stay valid
    seen: set[int] = set()
    for pattern in [pattern for needed, pattern in _IN_TEXT if needed.search(joined)]:
        for match in itertools.islice(pattern.finditer(joined), _MOST_LOOKED_AT):
            line = text.count("\n", 0, match.start("command")) + 1
            if line in seen or len(found.launches) >= _MOST_EMBEDDED:
                continue
            seen.add(line)
            for command in read_script(match["command"][:_COMMAND_CHARS].split("`")[0], line).commands[:1]:
                if _is_meant_as_command(command):
                    _add_command(found, command)
    found.values = [value for value in found.values if is_of_interest(value.name)]
    return found


def _is_meant_as_command(command: Command) -> bool:
    """Whether the words are a command: it has options or starts a file. Prose also names programs."""
    words = [shown(word) for word in command.words[1:]]
    return any(re.match(r"--?[A-Za-z]", word) or re.search(r"\.(?:py|sh)$", word) for word in words) and all(
        map(is_known, command.words[:1])
    )


# --- the configuration file of `accelerate launch` (accelerate 1.10 commands/config/config_args.py)

_NAMED = re.compile(r"^distributed_type:", re.M)
_KEYS = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids")
_MOST_CHARS = 64_000


def accelerate_layer(text: str) -> CommandLayer | None:
    """Return the options in the configuration file of `accelerate launch`; None for any other file."""
    if not _NAMED.search(text) or "num_processes" not in text or len(text) > _MOST_CHARS:
        return None
    tree = load_foreign_yaml(text)
    if not isinstance(tree, dict):
        return None
    given = {key: str(tree[key]) for key in _KEYS if isinstance(tree.get(key), str | int)}
    return CommandLayer("accelerate", [CommandOption(key, value, f"{key}: {value}") for key, value in given.items()])
