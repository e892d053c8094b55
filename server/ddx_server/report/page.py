"""Renders a view as one self-contained HTML file; the policy allows only its own styles and scripts, by hash."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ddx_server.render.markdown import CODE_SPAN
from ddx_server.render.safe_text import harmless
from ddx_server.report.collective_table import CELL_WORDS
from ddx_server.report.rank_states import STATE_WORDS
from ddx_server.report.view import ReportView, report_view
from ddx_tools.evidence.store import Store
from ddx_tools.investigation.exports import write_file
from ddx_tools.investigation.result import Investigation
from ddx_tools.model.diagnosis import Diagnosis

_HERE = Path(__file__).parent
_PARTS = ("page.css", "page.js", "uplot/uPlot.min.css", "uplot/uPlot.iife.min.js")
_POLICY = "default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


def write_report(out: Path, store: Store, found: Investigation, said: Diagnosis, target: Sequence[str]) -> int:
    """Write the page of an answer, replacing an existing file; return its size in bytes. Raises UsageError."""
    return write_file(out, html_page(report_view(store, found, said, target)))


def html_page(view: ReportView) -> str:
    """Render a view as HTML. Anything from the job appears as text, without secrets and control characters."""
    style, script, plot_style, plot = (Markup((_HERE / name).read_text(encoding="utf-8")) for name in _PARTS)
    policy = _POLICY.format(
        style=f"{_hash(style)} {_hash(plot_style)}" if view.charts else _hash(style),
        script=f"{_hash(script)} {_hash(plot)}" if view.charts else _hash(script),
    )
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            view=view,
            said=view.said,
            states=STATE_WORDS,
            cells=CELL_WORDS,
            axes=_json(view.grid.axes if view.grid else {}),
            policy=Markup(policy),
            style=style,
            script=script,
            charts=_json([chart.data() for chart in view.charts]),
            plot_style=plot_style,
            plot=plot,
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: object) -> Markup:
    """JSON that cannot close the HTML element it is in."""
    text = json.dumps(_shown_inside(value))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _shown_inside(value: object) -> object:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {_text(str(name)): _shown_inside(inner) for name, inner in value.items()}
    return [_shown_inside(inner) for inner in value] if isinstance(value, list | tuple) else value


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    made.filters["prose"] = _prose
    return made


def _prose(text: str) -> Markup:
    """Our own sentences, with `code spans` as elements."""
    pieces = [escape(_text(piece)) for piece in CODE_SPAN.split(text)]
    return Markup("").join(Markup("<code>{}</code>").format(one) if at % 2 else one for at, one in enumerate(pieces))


def _shown(value: object) -> object:
    """Make a template value safe for the page; our own Markup and numbers stay unchanged."""
    return value if isinstance(value, Markup | int | float) else _text("" if value is None else str(value))


@lru_cache(maxsize=4096)
def _text(text: str) -> str:
    return harmless(text)
