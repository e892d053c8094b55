"""Display and parsing of names from a job (files, archive members, addresses), which may be hostile."""

from __future__ import annotations

import ipaddress
import re


def shown(name: str, most: int = 400) -> str:
    """A name as a label: unprintable characters escaped, and a long name cut to its end, which says more."""
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name[-most:])
    return printable if len(name) <= most else f"…{printable}"


def as_folders(path: str) -> str:
    """A path with archives as folders: `job.tar!logs/rank3.log` becomes `job.tar!/logs/rank3.log`."""
    return re.sub(r"!(?!/)", "!/", path.replace("\\", "/")) if "!" in path or "\\" in path else path


def ip_of(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, ignoring its zone; None for anything else."""
    try:
        return ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None


def is_loopback(text: str | None) -> bool:
    """Whether an address is a loopback address, which reaches only the host itself."""
    return (address := ip_of(text)) is not None and address.is_loopback
