"""Asks a Prometheus-compatible server for the values of metrics over time: `POST URL/api/v1/query_range`.

Source: prometheus/prometheus docs/querying/api.md. A password or token comes from the environment of ddx and is part
of no question, so that it reaches neither a bundle nor a message. Redirects are not followed: they could lead the
token elsewhere.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from http.client import HTTPException
from urllib.parse import urlencode

from ddx_tools.model.errors import HostError, NotFound, NotPermitted, TimedOut, UnreadableInput, UsageError
from ddx_tools.parsers.machine.metrics_series import error_of, series_text
from ddx_tools.sources.host import HostCall, Reply
from ddx_tools.sources.hosts.http_fetch import HttpRequest, exchange

TOKEN = "DDX_PROMETHEUS_TOKEN"
_SERVER = re.compile(r"https?://(?:\[[0-9a-fA-F:.%]{2,60}\]|[\w.-]{1,255})(?::\d{1,5})?(?:/[\w./~-]{0,300})?")
_FAILURE_BYTES = 4_000
_SUCCESS = range(200, 300)
_REDIRECTED = range(300, 400)


def server_of(text: str) -> str:
    """The URL of a server, without a slash at its end. Raises UsageError, which does not repeat a password."""
    url = text.strip().rstrip("/").removesuffix("/api/v1")
    if "@" in text or "?" in text:
        raise UsageError(
            "other users of this host can see a password or token on the command line",
            f"Give only the URL, and set {TOKEN} to the token, or to USER:PASSWORD.",
        )
    if not _SERVER.fullmatch(url):
        raise UsageError(
            f"{text[:200]!r} is not the URL of a Prometheus server.",
            "Give http:// or https://, for example: --prometheus http://prometheus.cluster:9090",
        )
    return url


def ask_metrics(call: HostCall) -> Reply:
    """Answer `[URL, query, start, end, step]` (seconds), as `series_text` does. Raises HostError, within the limit."""
    url, query, start_s, end_s, step_s = json.loads(call.key)
    limit_s, most = call.options["timeout_s"], call.options["max_bytes"]
    form = {"query": query, "start": start_s, "end": end_s, "step": step_s, "timeout": f"{limit_s:g}s"}
    request = HttpRequest(
        "POST",
        f"{server_of(url)}/api/v1/query_range",
        urlencode(form).encode(),
        {"Content-Type": "application/x-www-form-urlencoded", **_authorization()},
    )
    began_s = time.monotonic()
    try:
        answer = exchange(request, limit_s, most)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) or time.monotonic() - began_s >= limit_s:
            raise TimedOut(f"{url} did not answer within {limit_s:g} s", "") from error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NotFound(f"{url}: {reason}", "Is it the URL of a Prometheus server that this host can reach?") from error
    if answer.status not in _SUCCESS:
        raise _refused(url, answer.status, answer.reason, answer.data[:_FAILURE_BYTES])
    if len(answer.data) > most:
        raise HostError(f"{url}: the answer is larger than {most >> 20} MiB", "Name fewer hosts.")
    try:
        return Reply(series_text(answer.data, step_s))
    except UnreadableInput as error:
        raise HostError(f"{url}: {error.message}", "Is it the URL of a Prometheus server?") from error


def _authorization() -> dict[str, str]:
    token = os.environ.get(TOKEN, "").strip()
    if not token:
        return {}
    if ":" in token:
        return {"Authorization": f"Basic {base64.b64encode(token.encode()).decode()}"}
    return {"Authorization": f"Bearer {token}"}


def _refused(url: str, status: int, reason: str, body: bytes) -> HostError:
    if status in (401, 403):
        words = "rejects the token" if os.environ.get(TOKEN) else "wants a password or token"
        return NotPermitted(
            f"{url} {words} ({status} {reason})", f"Set {TOKEN} to the token, or to USER:PASSWORD; it is never kept."
        )
    if status in _REDIRECTED:
        return HostError(f"{url} redirects to another address ({status})", "Give that address; ddx does not follow.")
    words = error_of(body)
    return HostError(f"{url}: {status} {reason}{f': {words}' if words else ''}", "")
