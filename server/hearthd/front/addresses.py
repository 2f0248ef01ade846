"""Addresses as written in the configuration, and the paths of Unix sockets that are not configured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple


class Address(NamedTuple):
    """A host (a name, or an IP address without brackets) and a TCP port. As text, an IPv6 host is put in brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True if only this host can reach the address."""
        ip = to_ip(self.host)
        return self.host == "localhost" or (ip is not None and ip.is_loopback)

    @property
    def numeric(self) -> bool:
        """True if the host is an IP address and needs no name lookup."""
        return to_ip(self.host) is not None

    @property
    def wildcard(self) -> bool:
        """True if the address is a wildcard, for every interface of the host."""
        ip = to_ip(self.host)
        return ip is not None and ip.is_unspecified


@dataclass(frozen=True)
class Addresses:
    """The addresses on which the daemon listens. Empty: that listener is off."""

    grpc: str = ""
    http: str = ""
    unix: str = ""
    lanes: str = ""
    http_unix: str = ""

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in vars(self).items() if value)


def to_ip(host: str) -> IPv4Address | IPv6Address | None:
    """Returns the IP address that a host is; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def parse_address(text: str) -> Address:
    """Parses `host:port`, `[v6]:port` or `:port` (every interface). Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'{text!r} is not an address; write "host:port", e.g. "127.0.0.1:7421"')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'{text!r} is not an address; write an IPv6 address in brackets, e.g. "[::1]:{port}"')
    return Address(host or "0.0.0.0", int(port))


def default_unix_path(environ: Mapping[str, str]) -> str:
    """Returns the path of the Unix socket if none is configured. Clients search the same places.

    The path is `/run/hearth/hearth.sock` if that directory is writable or can be created, otherwise
    `$XDG_RUNTIME_DIR/hearth/hearth.sock`, otherwise `~/.cache/hearth/hearth.sock`.
    """
    run = Path("/run/hearth")
    if os.access(run, os.W_OK | os.X_OK) or (not run.exists() and os.access(run.parent, os.W_OK | os.X_OK)):
        return str(run / "hearth.sock")
    base = environ.get("XDG_RUNTIME_DIR")
    directory = Path(base) if base else Path("~/.cache").expanduser()
    return str(directory / "hearth" / "hearth.sock")


def identity_path(path: str) -> str:
    """Returns the path of the identity socket for that of gRPC's socket. Clients derive it by the same rule."""
    grpc_socket = Path(path)
    return str(grpc_socket.with_name(f"{grpc_socket.stem}-identity{grpc_socket.suffix}"))
