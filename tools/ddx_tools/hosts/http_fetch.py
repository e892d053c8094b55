"""Asks an HTTP endpoint that somebody named, and follows no redirection."""

from __future__ import annotations

import urllib.error
import urllib.request

from ddx_tools.errors import HostError, NotFound, TimedOut
from ddx_tools.hosts.base import Call, Reply


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An endpoint of a job does not say where else we knock."""

    def redirect_request(self, *_: object) -> None:
        """None: the redirection is the answer, and an error."""


_OPENER = urllib.request.build_opener(_NoRedirects)


def fetch(call: Call) -> Reply:
    """The answer to `POST http://…` or another method. Raises HostError."""
    method, _, url = call.key.partition(" ")
    if not url.startswith(("http://", "https://")):
        raise HostError(f"{url}: only http and https endpoints can be asked", "")
    request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
    most = call.options["max_bytes"]
    try:
        with _OPENER.open(request, timeout=call.options["timeout_s"]) as response:
            data = response.read(most + 1)
    except TimeoutError as error:
        raise TimedOut(f"{url} did not answer in time", "") from error
    except urllib.error.URLError as error:
        raise NotFound(f"{url}: {error.reason}", "") from error
    return Reply(data[:most], truncated=len(data) > most)
