"""`ddx similar`: finds known cases like the present one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ddx_server.render.output import JSON_OPTION, TARGET, console, print_json, progress_line
from ddx_server.render.safe_text import safe


def similar(
    target: TARGET = None,
    about: Annotated[
        str,
        typer.Option(
            help="Message, operation, versions or devices to look up: 'ibv_modify_qp failed 110, NCCL 2.21.5'."
        ),
    ] = "",
    most: Annotated[int, typer.Option(help="Maximum number of cases.", min=1, max=20)] = 3,
    as_json: JSON_OPTION = False,
) -> None:
    """Show confirmed cases and known bugs like this one. They are not evidence; each says what differs."""
    from ddx_tools.diagnosis.casebook import similar_to
    from ddx_tools.investigation.run import investigate

    if about and not target:
        told = similar_to(about, most)
    else:
        with progress_line(quiet=as_json) as progress:
            found = investigate(target or [], progress=progress)
            told = found.similar(found.judge(), most, about)
    if as_json:
        print_json(json.dumps([one.model_dump() for one in told]))
        return
    for one in told:
        console().print(
            safe(f"{one.share:.0%}  {one.line()}", "bold" if one.strong else "", limit=2000), soft_wrap=True
        )
        console().print(safe(f"     {one.link}", "dim"), soft_wrap=True)
    if not told:
        console().print("The casebook has no similar case.")
