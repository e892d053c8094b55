"""`ddx bisect HOSTS`: which groups of hosts to run next, until it is told which host or pair is bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.output import EXIT_DIAGNOSED, EXIT_HEALTHY, EXIT_UNDECIDED, JSON_OPTION, console, print_json
from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from ddx_tools.preflight.bisection import Culprits, Round

_MOST_HOSTS = 100_000


def bisect(
    hosts: Annotated[str, typer.Argument(help="node[0-63], a comma-separated list, or a file with a host a line.")],
    bad: Annotated[
        list[str] | None,
        typer.Option(help="Numbers of the bad groups of a round, or none; once for each round that was run, in order."),
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Find the bad host, or the bad pair of hosts, in the fewest rounds of test runs.

    Prints the groups of hosts to run next, side by side: a run is `ddx preflight -- torchrun …` or nccl-tests over the
    hosts of one group. Say which groups were bad, and get the next round: `ddx bisect node[0-63] --bad 1 --bad 3`.
    """
    from ddx_tools.errors import UsageError
    from ddx_tools.preflight.bisection import Round, bounds, follow

    names = _names(hosts)
    told = [_numbers(one) for one in bad or []]
    try:
        now = follow(names, told)
    except ValueError as error:
        raise UsageError(
            f"--bad: {error}", "Give --bad once for each round, in order; none where all was well."
        ) from error
    most = bounds(len(names))
    limits = f"at most {most.rounds} rounds and {most.runs} runs, if up to 3 hosts or one pair are bad"
    if as_json:
        print_json(json.dumps(_as_dict(now) | {"most_rounds": most.rounds, "most_runs": most.runs}, indent=2))
    elif isinstance(now, Round):
        console().print(safe(f"round {len(told) + 1}: {now.why}, all at the same time ({limits})"))
        for number, group in enumerate(now.groups, 1):
            console().print(safe(f"{number:>5}  {_folded(group)}", limit=4000))
        console().print(safe("then the same command with --bad NUMBERS (or --bad none) behind it", "dim"))
    else:
        console().print(safe(_sentence(now), limit=4000))
    if isinstance(now, Round):
        raise typer.Exit(EXIT_UNDECIDED)
    raise typer.Exit(EXIT_DIAGNOSED if now.hosts or now.pairs else EXIT_UNDECIDED if now.undecided else EXIT_HEALTHY)


def _names(text: str) -> list[str]:
    """Each host once. Raises UsageError."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException

    from ddx_tools.errors import UsageError

    path = Path(text)
    if path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        # As in hostfiles of MPI: `node1 slots=8`.
        text = ",".join(line.split()[0] for line in lines if line.strip() and not line.lstrip().startswith("#"))
    try:
        names = [str(name) for name in NodeSet(text)]
    except NodeSetException as error:
        raise UsageError(f"{text[:100]}: not a list of hosts ({error})", "For example: node[0-63] or a,b,c.") from error
    if not 2 <= len(names) <= _MOST_HOSTS:
        raise UsageError(f"{len(names)} hosts", f"Name 2 to {_MOST_HOSTS:,} hosts: node[0-63], a,b,c or a file.")
    return names


def _numbers(text: str) -> list[int]:
    from ddx_tools.errors import UsageError

    words = [word.strip() for word in text.split(",")]
    if words == ["none"]:
        return []
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--bad {text[:100]}: not numbers of groups", "For example: --bad 3, --bad 1,7 or --bad none.")
    return [int(word) for word in words]


def _folded(group: tuple[str, ...]) -> str:
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(list(group)))


def _as_dict(now: Round | Culprits) -> dict[str, object]:
    from ddx_tools.preflight.bisection import Round

    if isinstance(now, Round):
        return {"round": now.why, "groups": [list(group) for group in now.groups]}
    return {"bad_hosts": now.hosts, "bad_pairs": now.pairs, "undecided": now.undecided}


def _sentence(found: Culprits) -> str:
    parts = []
    if found.hosts:
        parts.append(f"bad: {_folded(tuple(found.hosts))}")
    parts += [f"bad together, though each is well with others: {one} and {other}" for one, other in found.pairs]
    if found.undecided:
        parts.append(f"undecided among {_folded(tuple(found.undecided))}: add hosts that are known to be good")
    return "; ".join(parts) or "nothing is bad"
