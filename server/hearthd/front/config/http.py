"""The `[http]` section: access over HTTP, and limits on unauthenticated clients."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator

from hearthd.front.config.section import Seconds, Section

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")


class HttpSettings(Section):
    """Limits of the HTTP listener. A connection beyond them displaces an idle one, or is closed if there is none."""

    hosts: tuple[str, ...] = ()
    """Additional host names that requests may name: "gpu1.example.org", "*.example.org", "*"."""
    metrics_on_loopback: bool = False
    """True, with tenants: `/metrics` needs no token from this host, and shows all tenants."""
    metrics_max_age: Seconds = Field(default=1.0, ge=0, le=60)
    """Minimum interval between collections of `/metrics` for each tenant."""
    max_connections: int = Field(default=256, ge=8, le=65536)
    """Maximum number of connections of the listener."""
    max_connections_per_address: int = Field(default=64, ge=4, le=65536)
    """Maximum number of connections of one address."""
    header_timeout: Seconds = Field(default=5.0, gt=0, le=600)
    """Time limit from a request's first byte to the end of its headers, and for a TLS handshake."""
    idle_timeout: Seconds = Field(default=30.0, gt=0, le=3600)
    """Time limit between two requests on a connection."""
    write_timeout: Seconds = Field(default=10.0, gt=0, le=600)
    """Time limit for a client to read 64 KiB of a response."""

    @field_validator("hosts", mode="before")
    @classmethod
    def _parse_list(cls, value: Any) -> Any:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(name.lower().rstrip(".") for name in value)
        for name in names:
            if not _HOST.fullmatch(name):
                raise ValueError(
                    f'{name!r} is not a host name; write "gpu1.example.org", "*.example.org" or "*", without a port'
                )
        return names
