"""Names that come from a job: of files, of members of archives. Whoever chose them may have meant harm."""

from __future__ import annotations

import ipaddress
import re


def shown(name: str, most: int = 400) -> str:
    """A name as a label: what is not printable escaped, and of a long one the end, which tells more."""
    printable = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name[-most:])
    return printable if len(name) <= most else f"…{printable}"


def as_folders(path: str) -> str:
    """A path in which archives stand as folders: `job.tar!/logs/rank3.log` of `job.tar!logs/rank3.log`."""
    return re.sub(r"!(?!/)", "!/", path.replace("\\", "/")) if "!" in path or "\\" in path else path


def ip_of(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address, whatever its zone; None for what is none."""
    try:
        return ipaddress.ip_address((text or "").partition("%")[0])
    except ValueError:
        return None


def is_loopback(text: str | None) -> bool:
    """Whether an address reaches only the host itself."""
    return (address := ip_of(text)) is not None and address.is_loopback
