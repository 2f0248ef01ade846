"""The process's own sockets, read from the kernel: which connections a listener has that another library accepted.

gRPC's C core accepts by itself and tells Python nothing of it. `/proc/self/fd` lists its descriptors; each is looked at
through one reserved descriptor, filled by `dup2`, so that a look needs no free descriptor and what is shut down is the
very socket that was looked at, whatever gRPC's threads close meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Collection
from typing import NamedTuple

from hearthd.front.connections import socket_filter
from hearthd.front.connections.peers import credentials_of, grpc_name

_BYTES_RECEIVED = struct.Struct("=128xQ")
"""tcp_info.tcpi_bytes_received, linux/tcp.h (since Linux 4.1)."""
_TCP_INFO_BYTES = 144
_SO_DOMAIN = 39  # asm-generic/socket.h
_UNSPECIFIED = struct.pack("=H14x", socket.AF_UNSPEC)
"""A TCP socket that connects to this address is not connected any more: what is unread is dropped, and the peer gets an
RST. Python's own `connect` cannot name it."""
_connect = ctypes.CDLL(None, use_errno=True).connect


class OpenSocket(NamedTuple):
    """A connected socket."""

    local: str
    """Listener of the socket: `host:port`'s port for TCP, the path of a Unix socket."""
    peer: str
    """An IP address, or `uid:N`."""
    name: str
    """See `peers.grpc_name`; empty on a Unix socket."""
    pid: int
    """The peer's process on a Unix socket, else 0."""


class OpenSockets:
    """The descriptor table. Belongs to one thread."""

    def __init__(self) -> None:
        """Raises `OSError` where there are no descriptors left or /proc is not mounted."""
        _descriptors()
        # AF_UNIX, whose addresses are the longest: the kernel's answers for every family fit.
        self._hand = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._null = os.dup(self._hand.fileno())
        """An unconnected socket that the hand is when it holds no other."""
        self._seen: dict[int, int] = {}
        """Inode of the socket at each descriptor."""
        self.descriptors = 0
        """Open descriptors of the process at the last `scan`."""

    def scan(self) -> tuple[dict[int, int], list[int]]:
        """Sockets that are new since the last scan (inode by descriptor), and descriptors that went, or became another
        file."""
        seen: dict[int, int] = {}
        fstat, is_socket = os.fstat, stat.S_ISSOCK
        numbers = _descriptors()
        self.descriptors = len(numbers) - 1  # one is the listing's own
        for text in numbers:
            number = int(text)
            try:
                found = fstat(number)
            except OSError:
                continue
            if is_socket(found.st_mode):
                seen[number] = found.st_ino
        before, self._seen = self._seen, seen
        new = {number: inode for number, inode in seen.items() if before.get(number) != inode}
        gone = [number for number, inode in before.items() if seen.get(number) != inode]
        return new, gone

    def listening(self, names: Collection[str]) -> list[socket.socket]:
        """Duplicates of the sockets that listen at these addresses, named as `OpenSocket.local`."""
        found = []
        for number in map(int, _descriptors()):
            try:
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                copy = socket.socket(fileno=os.dup(number))
            except OSError:
                continue
            if _listens(copy) and _local(copy) in names:
                found.append(copy)
            else:
                copy.close()
        return found

    def find(self, number: int, inode: int) -> OpenSocket | None:
        """Both ends of a socket; None where it is none that is connected, or has gone."""
        if not self._take(number, inode):
            return None
        try:
            hand = self._hand
            local, peer = _local(hand), hand.getpeername()
            if hand.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN) == socket.AF_UNIX:
                pid, uid, _ = credentials_of(hand)
                return OpenSocket(local, f"uid:{uid}", "", pid)
            return OpenSocket(local, str(peer[0]), grpc_name(str(peer[0]), int(peer[1])), 0)
        except (OSError, ValueError, TypeError, IndexError):
            return None
        finally:
            self._drop()

    def received(self, number: int, inode: int, *, tcp: bool) -> int:
        """Bytes that a TCP connection has received so far, or that wait unread on a Unix socket; -1 where it has
        gone."""
        if not self._take(number, inode):
            return -1
        try:
            if not tcp:
                return int(struct.unpack("=i", fcntl.ioctl(self._hand, termios.FIONREAD, b"\0" * 4))[0])
            info = self._hand.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            return int(_BYTES_RECEIVED.unpack_from(info)[0]) if len(info) >= _BYTES_RECEIVED.size else 0
        except OSError:
            return -1
        finally:
            self._drop()

    def shut(self, number: int, inode: int) -> bool:
        """Ends a connection in both directions; the library that accepted it cleans up. False: it has gone already."""
        if not self._take(number, inode):
            return False
        try:
            self._hand.shutdown(socket.SHUT_RDWR)
        except OSError:
            return False
        else:
            return True
        finally:
            self._drop()

    def reset(self, number: int, inode: int) -> bool:
        """Closes the socket as `shut` does, and drops the data that was received but not read, which the library would
        read first."""
        if not self._take(number, inode):
            return False
        try:
            if self._hand.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN) == socket.AF_UNIX:
                self._hand.shutdown(socket.SHUT_RDWR)
                return True
            return int(_connect(self._hand.fileno(), _UNSPECIFIED, len(_UNSPECIFIED))) == 0
        except OSError:
            return False
        finally:
            self._drop()

    def remove_filter(self, number: int, inode: int) -> None:
        """Takes the filter of a connection away, if it has one."""
        if self._take(number, inode):
            with contextlib.suppress(OSError):
                socket_filter.detach(self._hand)
            self._drop()

    def close(self) -> None:
        self._hand.close()
        with contextlib.suppress(OSError):
            os.close(self._null)
        self._null = -1

    def _take(self, number: int, inode: int) -> bool:
        """Returns True if the reserved descriptor is the socket now."""
        hand = self._hand.fileno()
        try:
            os.dup2(number, hand, inheritable=False)
            if os.fstat(hand).st_ino == inode:
                return True
        except OSError:
            return False
        self._drop()
        return False

    def _drop(self) -> None:
        os.dup2(self._null, self._hand.fileno(), inheritable=False)


def _descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208 - several times a second, and paths are not wanted


def _listens(one: socket.socket) -> bool:
    try:
        return bool(one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _local(one: socket.socket) -> str:
    """The port of a TCP socket, the path of a Unix socket; empty for others."""
    name = one.getsockname()
    if isinstance(name, tuple):
        return str(name[1]) if len(name) > 1 else ""
    return os.fsdecode(name)
