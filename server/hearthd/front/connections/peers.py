"""Names of peers: how gRPC, sockets and limits name the other end of a connection.

Pure, except for `peer_of`, `credentials_of`, `process_of` and `pids_of`.
"""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import struct
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_SO_PEERPIDFD = 77  # asm-generic/socket.h, Linux 6.5; Python has no name for it


def peer_of(connection: Any) -> str:
    """Returns the peer of a connected socket in the form that `ConnectionLimiter.admit` expects.

    It is an IP address, or `uid:N` on a Unix socket. Empty if the peer has disconnected. Accepts asyncio's transport
    sockets.
    """
    try:
        if connection.family == socket.AF_UNIX:
            return f"uid:{credentials_of(connection)[1]}"
        return str(connection.getpeername()[0])
    except OSError:
        return ""


def credentials_of(connection: Any) -> tuple[int, int, int]:
    """Returns the pid, user and primary group at the other end of a Unix socket, as of the time of connecting.

    Raises `OSError`.
    """
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(packed)
    return pid, uid, gid


def process_of(connection: Any) -> tuple[int, int] | None:
    """Returns the pid at the other end of a Unix socket, and a pidfd of the process, which the caller must close.

    The process is the one that connected. Returns None if it has ended, if the kernel gives no pid (a process of
    another pid namespace) or no pidfd, and if descriptors are scarce: more than half of the limit are open.
    """
    try:
        pid = credentials_of(connection)[0]
        if pid <= 0:
            return None
        try:
            descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:  # Linux before 6.5
            descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if descriptor > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
        os.close(descriptor)
        return None
    return pid, descriptor


def pids_of(pid: int) -> tuple[int, ...]:
    """Returns the pids that a process has in its pid namespace and in the outer ones up to this process's namespace."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123 - less work
            line = next((line for line in file if line.startswith("NSpid:")), "")
    except OSError:  # /proc is not mounted, or hides the process
        return (pid,)
    return tuple(map(int, line.split()[1:])) or (pid,)


@lru_cache(maxsize=1024)
def group_of(peer: str) -> str:
    """Returns the group under which limits count `peer`.

    An IPv6 address counts as its /64, which typically belongs to one host; an IPv4-mapped IPv6 address counts as the
    IPv4 address.
    """
    if ":" not in peer or peer.startswith("uid:"):
        return peer
    try:
        address = ipaddress.IPv6Address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))


def grpc_name(host: str, port: int) -> str:
    """Returns gRPC's name of a TCP peer, in the form that `normal_name` returns."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return f"{mapped or address}|{port}"


@lru_cache(maxsize=4096)
def normal_name(peer: str) -> str:
    """Converts `context.peer()` (`ipv4:1.2.3.4:5`, `ipv6:%5B::1%5D:5`) to the form of `grpc_name`.

    Empty if the peer is not connected over TCP.
    """
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host, _, port = unquote(address).rpartition(":")
    try:
        return grpc_name(host.strip("[]"), int(port))
    except ValueError:
        return ""
