"""`ddx bisect HOSTS`: which groups of hosts to test next, round by round, until the bad host or pair is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ddx_server.render.output import EXIT_DIAGNOSED, EXIT_HEALTHY, EXIT_UNDECIDED, JSON_OPTION, console, print_json
from ddx_server.render.safe_text import safe

if TYPE_CHECKING:
    from ddx_tools.probes.preflight.bisection import BisectionCulprits, BisectionRound


def bisect(
    hosts: Annotated[str, typer.Argument(help="node[0-63], a comma-separated list, or a file with one host per line.")],
    bad: Annotated[
        list[str] | None,
        typer.Option(help="Numbers of the bad groups in a round, or none; give it once per completed round, in order."),
    ] = None,
    as_json: JSON_OPTION = False,
) -> None:
    """Find the bad host, or the bad pair of hosts, in the fewest rounds of test runs.

    Prints the groups of hosts to test next, all at the same time. Test each group with `ddx preflight -- torchrun …` or
    nccl-tests over its hosts. Then say which groups were bad to get the next round: `ddx bisect node[0-63] --bad 1
    --bad 3`.
    """
    from ddx_tools.model.errors import UsageError
    from ddx_tools.probes.preflight.bisection import BisectionRound, bounds, follow
    from ddx_tools.sources.cluster.targets import folded, node_names

    names = node_names(hosts)
    if len(names) < 2:
        raise UsageError("only 1 host", "Name at least 2: node[0-63], a,b,c or a file.")
    told = [_numbers(one) for one in bad or []]
    try:
        now = follow(names, told)
    except ValueError as error:
        raise UsageError(
            f"--bad: {error}", "Give --bad once for each round, in order; none if no group was bad."
        ) from error
    most = bounds(len(names))
    limits = f"at most {most.rounds} rounds and {most.runs} runs, if up to 3 hosts or one pair are bad"
    if as_json:
        print_json(json.dumps(_as_dict(now) | {"most_rounds": most.rounds, "most_runs": most.runs}, indent=2))
    elif isinstance(now, BisectionRound):
        console().print(safe(f"round {len(told) + 1}: {now.why}; test all groups at the same time ({limits})"))
        for number, group in enumerate(now.groups, 1):
            console().print(safe(f"{number:>5}  {folded(group)}", limit=4000))
        console().print(safe("then repeat this command with --bad NUMBERS (or --bad none) added", "dim"))
    else:
        console().print(safe(_sentence(now), limit=4000))
    if isinstance(now, BisectionRound):
        raise typer.Exit(EXIT_UNDECIDED)
    raise typer.Exit(EXIT_DIAGNOSED if now.hosts or now.pairs else EXIT_UNDECIDED if now.undecided else EXIT_HEALTHY)


def _numbers(text: str) -> list[int]:
    from ddx_tools.model.errors import UsageError

    words = [word.strip() for word in text.split(",")]
    if words == ["none"]:
        return []
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"--bad {text[:100]}: not group numbers", "For example: --bad 3, --bad 1,7 or --bad none.")
    return [int(word) for word in words]


def _as_dict(now: BisectionRound | BisectionCulprits) -> dict[str, object]:
    from ddx_tools.probes.preflight.bisection import BisectionRound

    if isinstance(now, BisectionRound):
        return {"round": now.why, "groups": [list(group) for group in now.groups]}
    return {"bad_hosts": now.hosts, "bad_pairs": now.pairs, "undecided": now.undecided}


def _sentence(found: BisectionCulprits) -> str:
    from ddx_tools.sources.cluster.targets import folded

    parts = []
    if found.hosts:
        parts.append(f"bad: {folded(tuple(found.hosts))}")
    parts += [f"bad together, though each works with others: {one} and {other}" for one, other in found.pairs]
    if found.undecided:
        parts.append(f"undecided among {folded(tuple(found.undecided))}: add hosts known to be good")
    return "; ".join(parts) or "nothing is bad"
