"""Host names for which requests are accepted, and origins from which they are accepted.

A web page can have its own name resolve to this host (DNS rebinding), and could then read every response as its own.
Its requests carry that name as Host, so a name that is not this daemon's is refused. An IP address cannot be rebound,
and is accepted. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hearthd.front.addresses import to_ip

_NAME = re.compile(r"(?P<host>[a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(:[0-9]{1,5})?")
_SAME_SITE = ("same-origin", "none")
"""Values of Sec-Fetch-Site in requests that the daemon's own page or a person makes."""


def is_own_host(header: str, names: Iterable[str]) -> bool:
    """Returns True if a request with this Host header is for this daemon.

    `names`: exact names, `*.example.org` for all names below one, or `*` for all names.
    """
    host = host_of(header)
    if host is None:
        return False
    lowered = [name.lower().rstrip(".") for name in names if name]
    suffixes = [name[1:] for name in lowered if name.startswith("*.")]
    return (
        "*" in lowered
        or host in lowered
        or host == "localhost"
        or host.endswith((".localhost", *suffixes))
        or to_ip(host) is not None
    )


def host_of(header: str) -> str | None:
    """Returns the name or address in a Host header, in lower case and without the port.

    None: the header is malformed.
    """
    match = _NAME.fullmatch(header.strip().lower())
    if match is None:
        return None
    return match["host"].strip("[]").rstrip(".") or None


def same_origin(host: str, origin: str | None, site: str | None) -> bool:
    """Returns False if a page of another origin made the request.

    The arguments are the headers Host, Origin and Sec-Fetch-Site.
    """
    if site is not None and site.strip().lower() not in _SAME_SITE:
        return False
    if origin is None:
        return True
    scheme, _, authority = origin.strip().lower().partition("://")
    return scheme in ("http", "https") and authority == host.strip().lower()
