"""Splits a command line such as `srun … torchrun … train.py …` into layers, outermost first.

`knowledge/env_vars/launch_tools.yaml` lists the programs and options. Words with holes
(`ddx_tools.parsers.launch.shell_words`) are unknown values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddx_tools.knowledge.launch_tools import LaunchTool, dimension, launch_knowledge
from ddx_tools.parsers.launch.shell_words import is_known, shown

_MOST_LAYERS = 8
_DEGREE_WORD = re.compile(r"(?:\+{1,2}|--?)?([A-Za-z_][\w.-]{0,100}?)(?:=(.*))?", re.S)


@dataclass(frozen=True)
class CommandOption:
    """An option of a tool: its long name with `_` for `-`. The value is None for a flag or if unknown."""

    name: str
    value: str | None
    shown: str
    """The option as written on the command line."""


@dataclass
class CommandLayer:
    """One program of a command line, with its own options."""

    tool: str
    """A tool of the knowledge file, or `program` for the innermost program."""
    options: list[CommandOption] = field(default_factory=list)
    program: str = ""
    """The name of the innermost program, or the image of a container."""


def layers_of(words: Sequence[str]) -> list[CommandLayer]:
    """Split a command line into its nested programs, outermost first, each with its own options.

    Example: srun, torchrun, then the training script. `words` are the words of the command. Empty if it has neither a
    known launcher nor a degree of parallelism.
    """
    layers: list[CommandLayer] = []
    rest = list(words)
    while rest and len(layers) < _MOST_LAYERS:
        rest = _behind_wrappers(rest)
        tool, size = _tool(rest)
        if tool is None:
            break
        layer, rest = _read_layer(tool, rest[size:])
        layers.append(layer)
    inner = _shell_text(rest)
    if inner is not None:
        return layers + _inside(inner)
    if program := _program(rest):
        layers.append(program)
    has_degrees = bool(program and program.options)
    return layers if has_degrees or any(layer.tool != "program" for layer in layers) else []


def _inside(text: str) -> list[CommandLayer]:
    """The layers of the first launch command in `bash -c "…"`."""
    from ddx_tools.parsers.launch.shell_script import read_script

    for command in read_script(text).commands[:50]:
        if found := layers_of(command.words):
            return found
    return []


def _shell_text(rest: list[str]) -> str | None:
    if not rest or rest[0].rpartition("/")[2] not in launch_knowledge().shells:
        return None
    for place, word in enumerate(rest[1:6], 1):
        if re.fullmatch(r"-[a-z]*c", word):
            return rest[place + 1] if place + 1 < len(rest) else None
    return None


def _behind_wrappers(rest: list[str]) -> list[str]:
    known = launch_knowledge()
    while rest and re.fullmatch(r"[A-Za-z_]\w*=.*", rest[0], re.S):
        rest = rest[1:]
    if not rest or rest[0].rpartition("/")[2] not in known.wrappers:
        return rest
    for place in range(1, min(len(rest), 60)):
        name = rest[place].rpartition("/")[2]
        if _tool(rest[place:])[0] or name in known.shells or re.match(known.python, name):
            return _behind_wrappers(rest[place:])
    return rest[1:]


def _tool(rest: Sequence[str]) -> tuple[LaunchTool | None, int]:
    """The tool at the beginning of a command, and how many words name it."""
    if not rest:
        return None, 0
    name, module, size = rest[0].rpartition("/")[2], "", 1
    if re.match(launch_knowledge().python, name):
        # `python -u -m torch.distributed.run` and, in process tables, `python /usr/bin/torchrun`
        size = next((place + 1 for place, word in enumerate(rest[1:8], 1) if not word.startswith("-")), 0)
        if not size:
            return None, 0
        last = rest[size - 1]
        name, module = ("", last) if rest[size - 2] == "-m" else (last.rpartition("/")[2], "")
    for tool in launch_knowledge().tools:
        if (module in tool.module) if module else (name in tool.program):
            if tool.sub is None:
                return tool, size
            if tool.sub in rest[size : size + 2]:
                return tool, size + list(rest[size : size + 2]).index(tool.sub) + 1
    return None, 0


def _read_layer(tool: LaunchTool, rest: list[str]) -> tuple[CommandLayer, list[str]]:
    layer = CommandLayer(tool.tool)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        option, used = _option(tool, word, rest)
        layer.options.append(option)
        rest = rest[used:]
    if tool.starts and rest:
        layer.program, rest = shown(rest[0]), rest[1:]
    return layer, rest


def _option(tool: LaunchTool, word: str, rest: Sequence[str]) -> tuple[CommandOption, int]:
    """One option, and how many of the following words are its value."""
    name, equals, value = word.partition("=")
    plain = name.lstrip("-").replace("-", "_")
    long = tool.short.get(plain, plain)
    if equals:
        return CommandOption(long, value if is_known(value) else None, shown(word)), 0
    if plain in tool.flags:
        return CommandOption(long, None, shown(word)), 0
    if not name.startswith("--") and plain not in tool.short:  # -N2, -n16
        letter = tool.short.get(plain[:1])
        if letter and len(plain) > 1 and (plain[1:].isdigit() or not is_known(plain)):
            return CommandOption(letter, plain[1:] if is_known(plain) else None, shown(word)), 0
    if long in tool.two:
        return CommandOption(long, " ".join(map(shown, rest[:2])), shown(" ".join([word, *rest[:2]]))), min(
            2, len(rest)
        )
    if not rest or (rest[0].startswith("-") and not re.fullmatch(r"-\d+", rest[0])):
        return CommandOption(long, None, shown(word)), 0
    return CommandOption(long, rest[0] if is_known(rest[0]) else None, shown(f"{word} {rest[0]}")), 1


def _program(rest: Sequence[str]) -> CommandLayer | None:
    """The innermost program: its name, and the degrees of parallelism among its arguments."""
    words = list(rest)
    while words and (re.match(launch_knowledge().python, words[0].rpartition("/")[2]) or words[0].startswith("-")):
        words = words[1:]
    if not words:
        return None
    return CommandLayer("program", list(_degree_options(words[1:])), shown(words[0])[:200])


def _degree_options(words: Sequence[str]) -> Iterator[CommandOption]:
    for place, word in enumerate(words):
        found = _DEGREE_WORD.fullmatch(word)
        if not found or not dimension(found[1]):
            continue
        if found[2] is not None:
            yield CommandOption(found[1], found[2] if is_known(found[2]) else None, shown(word))
        elif word.startswith("-") and place + 1 < len(words):
            value = words[place + 1]
            yield CommandOption(found[1], value if is_known(value) else None, shown(f"{word} {value}"))


# --- what a host's agent (torchrun) is told about the other hosts: their number and the rendezvous endpoint
# Options and their defaults: torch 2.13, distributed/run.py; each may be set with a variable PET_<OPTION> instead.

_SPAN = re.compile(r"([0-9]{1,5})(?::[0-9]{1,5})?")
_MEETING_LIMIT = re.compile(r"(?:^|,)(?:join_)?timeout=([0-9]{1,6})(?:,|$)")
_MOST_CHARS = 200
_DEFAULT_ADDRESS, _DEFAULT_PORT = "127.0.0.1", "29500"


@dataclass(frozen=True)
class Meeting:
    """A rendezvous of agents, from the command of one of them."""

    nodes: int
    """The number of agents that must join before any starts a rank: the smaller number of `--nnodes=1:4`."""
    endpoint: str | None
    """Address and port; None if the command does not name them."""
    timeout_s: float | None = None
    """How long an agent waits for the others, if the command sets it (`--rdzv-conf timeout=…`)."""


def meeting_of(words: Sequence[str], env: Mapping[str, str]) -> Meeting | None:
    """Return the rendezvous of a torchrun command in its environment; None for other commands and for a single host."""
    layer = next((layer for layer in layers_of(words) if layer.tool == "torchrun"), None)
    if layer is None:
        return None
    told = {option.name: option.value for option in layer.options}

    def said(name: str) -> str | None:
        return told[name] if name in told else env.get(f"PET_{name.upper()}")

    span = _SPAN.fullmatch(said("nnodes") or "")
    if span is None or int(span[1]) < 2 or "standalone" in told or "PET_STANDALONE" in env:
        return None
    if (said("rdzv_backend") or "static") == "static" and not said("rdzv_endpoint"):
        # The static rendezvous uses the master's address.
        endpoint = f"{said('master_addr') or _DEFAULT_ADDRESS}:{said('master_port') or _DEFAULT_PORT}"
    else:
        endpoint = said("rdzv_endpoint") or ""
    limit = _MEETING_LIMIT.search(said("rdzv_conf") or "")
    return Meeting(int(span[1]), endpoint[:_MOST_CHARS] or None, float(limit[1]) if limit else None)
