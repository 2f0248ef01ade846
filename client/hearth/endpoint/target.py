"""Address of the daemon: from the argument of `connect`, the environment, or the usual sockets."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from hearth.errors import ArgumentError

DEFAULT_PORT = 7421
DEFAULT_TARGET = f"127.0.0.1:{DEFAULT_PORT}"
SYSTEM_SOCKET = "/run/hearth/hearth.sock"
LOCAL = "local"
"""Target that selects this machine's daemon."""
_TLS = "https://"
_MAX_PATH = 107
"""Maximum length of a Unix socket's path in bytes."""


class Target(NamedTuple):
    """An address in gRPC's notation."""

    address: str
    loopback: bool
    """True if the daemon is on this machine, so that no HTTP proxy is involved."""
    origin: str
    """Source of the address, for error messages."""
    tls: bool = False
    """True if the address was given with ``https://``: the connection uses TLS, and the daemon presents a
    certificate."""

    @property
    def unix_path(self) -> str:
        """Path of the daemon's Unix socket; empty for an address of another kind."""
        return "" if self.tls or self.address[:5] != "unix:" else self.address[5:]


def resolve(
    target: str | None, origin: str = "the argument of connect()", system_socket: str = SYSTEM_SOCKET
) -> Target:
    """Determines the address of the daemon.

    Args:
        target: The address; `LOCAL`: this machine's daemon, which is a Unix socket that exists, otherwise the default
            port; None: HEARTH_TARGET, otherwise `LOCAL`.
        origin: Source of `target`, for error messages.
        system_socket: Path of the socket of a daemon that is a system service.

    Returns:
        The address.

    Raises:
        ArgumentError: The address is malformed.
    """
    if target is not None and target.strip() != LOCAL:
        return _parse(target, origin)
    from_environment = os.environ.get("HEARTH_TARGET", "").strip()
    if target is None and from_environment and from_environment != LOCAL:
        return _parse(from_environment, "HEARTH_TARGET")
    for path in _usual_sockets(system_socket):
        if is_socket(path):
            return _parse(f"unix:{path}", "the default socket")
    return _parse(DEFAULT_TARGET, "the default address")


def is_socket(path: str) -> bool:
    """Returns True if there is a Unix socket at `path`, like `Path.is_socket`.

    Does not use `pathlib`, whose import takes longer than all other steps of finding the daemon.
    """
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except (OSError, ValueError):  # missing, not accessible, or no valid path
        return False


def _usual_sockets(system_socket: str) -> list[str]:
    """Returns the paths at which a daemon listens by default (`hearthd.front.addresses.default_unix_path`)."""
    user_folder = os.environ.get("XDG_RUNTIME_DIR") or os.path.expanduser("~/.cache")  # noqa: PTH111 - see `is_socket`
    return [system_socket, f"{user_folder}/hearth/hearth.sock"]


def _parse(target: str, origin: str) -> Target:
    target = target.strip()
    if target.startswith("unix:"):
        path = target.removeprefix("unix:").removeprefix("//")
        if not path or "\0" in path:
            raise _malformed(target, origin)
        if (length := len(os.fsencode(path))) > _MAX_PATH:
            raise ArgumentError(
                f"the path of the Unix socket {path!r} (from {origin}) has {length} bytes; {_MAX_PATH} are possible.",
                fix="use a shorter path, such as a symbolic link to the directory of the socket.",
            )
        return Target(f"unix:{path}", True, origin)
    tls = target.lower().startswith(_TLS)
    given_target, target = target, target[len(_TLS) :].removesuffix("/") if tls else target
    host, colon, port = target.rpartition(":")
    if not colon or target.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = target, str(DEFAULT_PORT)  # a host name without a port, or an IPv6 address
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if not host or "/" in target or not port.isdigit() or not 0 < int(port) < 65536:
        raise _malformed(given_target, origin)
    bare = host.strip("[]").lower()
    return Target(f"{host}:{port}", bare in ("localhost", "::1") or bare.startswith("127."), origin, tls)


def _malformed(target: str, origin: str) -> ArgumentError:
    return ArgumentError(
        f"{target!r} (from {origin}) is not an address of a daemon.",
        fix='use "host:7421", "https://host:7421" for TLS, "unix:/run/hearth/hearth.sock", or "local".',
    )
