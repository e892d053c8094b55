"""Turns each probe into a sub-command whose options come from the probe's arguments model."""

from __future__ import annotations

import inspect
import json
import shutil
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from ddx_server.bundle_place import place_of_bundle
from ddx_server.host_options import HOST_OPTIONS
from ddx_server.render.output import (
    FORCE_OPTION,
    JSON_OPTION,
    SAVE_OPTION,
    console,
    exit_with,
    print_json,
    progress_line,
)
from ddx_tools.model.diagnosis import lean_json
from ddx_tools.probes.declaration import Export, Probe
from ddx_tools.probes.registry import LIVE_PROBES, PROBES

_EXPLAIN_OPTION = Annotated[
    list[str] | None,
    typer.Option("--explain", help="Only explain this variable and check nothing; repeatable.", metavar="NAME"),
]
_LAUNCHER = "launcher"
"""The argument that is not an option but a command after two dashes: `ddx preflight -- torchrun …`."""


def mount_probes(app: typer.Typer) -> None:
    """Add one sub-command per probe to the app."""
    for probe in PROBES:
        help_text = probe.description if probe.read_only else f"{probe.description} (Not read-only: see above.)"
        app.command(
            probe.command,
            help=help_text,
            short_help=probe.title,
            epilog=_examples(probe),
            rich_help_panel="Probes",
        )(_command(probe))


def _examples(probe: Probe[Any]) -> str:
    """The probe's examples, separated by empty lines so that rich's help keeps one per line."""
    lines = (f"[bold]ddx {probe.command} {escape(typed)}[/bold]  {what}" for typed, what in probe.examples.items())
    return "\n\n".join(lines)


def _command(probe: Probe[Any]) -> Any:
    def run(**given: Any) -> None:
        from ddx_server.host_options import reach
        from ddx_server.standard_input import on_disk
        from ddx_tools.investigation.session.plan import Step
        from ddx_tools.investigation.single_probe import run_probe

        as_json: bool = given.pop("as_json")
        if names := given.pop("explain", None):
            _explain(probe, names, as_json=as_json)
            return
        save: Path | None = given.pop("save")
        force: bool = given.pop("force")
        on = reach(**{name: given.pop(name) for name in HOST_OPTIONS}) if probe.id in LIVE_PROBES else None
        exports = {name: out for name in probe.exports if (out := given.pop(name)) is not None}
        if _LAUNCHER in probe.args.model_fields and _is_command(given["target"]):
            given |= {_LAUNCHER: given["target"], "target": []}
        with (
            progress_line(quiet=as_json) as progress,
            on_disk(given["target"]) as readable,
            place_of_bundle(save, force=force) as place,
        ):
            result, _ = run_probe(Step(probe, {**given, "target": readable}, exports), progress, place, reach=on)
        if as_json:
            print_json(lean_json(result))
        else:
            from ddx_server.render.result import render_result

            render_result(result, console())
        exit_with(result)

    parameters = [_parameter(name, field) for name, field in probe.args.model_fields.items() if name != _LAUNCHER]
    parameters += [_export_parameter(name, export) for name, export in probe.exports.items()]
    if probe.explain:
        parameters.append(
            inspect.Parameter("explain", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_EXPLAIN_OPTION)
        )
    if probe.id in LIVE_PROBES:
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in HOST_OPTIONS.items()
        ]
    parameters += [
        inspect.Parameter("save", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=SAVE_OPTION),
        inspect.Parameter("force", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=FORCE_OPTION),
        inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JSON_OPTION),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    run.__name__ = probe.id
    return run


def _explain(probe: Probe[Any], names: list[str], *, as_json: bool) -> None:
    from ddx_server.render.safe_text import safe

    assert probe.explain is not None
    told = {name: probe.explain(name) for name in names}
    if as_json:
        print_json(json.dumps(told, ensure_ascii=False))
        return
    for line in (line for lines in told.values() for line in lines):
        console().print(safe(line), soft_wrap=True)


def _is_command(words: list[str]) -> bool:
    """Whether the words are a command to start, such as `torchrun --nnodes 2` or `./launch.sh`, not results to read.

    A file takes precedence over a program of the same name. If it is neither, it counts as a command, so that starting
    it produces the error message.
    """
    if not words or not Path(words[0]).exists():
        return bool(words)
    return "/" in words[0] and shutil.which(words[0]) is not None


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    default = field.get_default(call_default_factory=True)
    annotation: Any
    if name == "target":
        annotation = Annotated[list[str], typer.Argument(help=field.description, show_default=False)]
    else:
        option = typer.Option(f"--{name.replace('_', '-')}", help=field.description, **_bounds(field))
        annotation = Annotated[field.annotation, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _export_parameter(name: str, export: Export) -> inspect.Parameter:
    annotation = Annotated[Path | None, typer.Option(f"--{name.replace('_', '-')}", help=export.help, metavar="OUT")]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _bounds(field: FieldInfo) -> dict[str, Any]:
    """The model's `ge` and `le` as the option's range, so that the command line itself rejects a wrong value."""
    if _plain_type(field.annotation) not in (int, float):
        return {}
    found: dict[str, Any] = {}
    for constraint in field.metadata:
        if (low := getattr(constraint, "ge", None)) is not None:
            found["min"] = low
        if (high := getattr(constraint, "le", None)) is not None:
            found["max"] = high
    return found


def _plain_type(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(arg for arg in get_args(annotation) if arg is not type(None))
    return annotation
