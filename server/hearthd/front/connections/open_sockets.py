"""The process's own sockets, read from the kernel: the connections of a listener that another library has accepted.

gRPC's C core accepts connections itself and does not report them to Python. `/proc/self/fd` lists the process's
descriptors. Each is examined through one reserved descriptor, to which it is copied by `dup2`. A scan therefore needs
no free descriptor, and the socket that is shut down is certainly the one that was examined, even if gRPC's threads
close descriptors meanwhile.
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
"""The field `tcp_info.tcpi_bytes_received` of linux/tcp.h (since Linux 4.1)."""
_TCP_INFO_BYTES = 144
_SO_DOMAIN = 39  # asm-generic/socket.h
_UNSPECIFIED = struct.pack("=H14x", socket.AF_UNSPEC)
"""Address with which `connect` disconnects a TCP socket: unread data is dropped, and the peer gets an RST. Python's own
`connect` cannot express this address."""
_connect = ctypes.CDLL(None, use_errno=True).connect


class OpenSocket(NamedTuple):
    """A connected socket."""

    local: str
    """The listener of the socket: its port for TCP, its path for a Unix socket."""
    peer: str
    """An IP address, or `uid:N`."""
    name: str
    """Name of the peer as given by `peers.grpc_name`. Empty on a Unix socket."""
    pid: int
    """The peer's process on a Unix socket, else 0."""


class OpenSockets:
    """The process's table of descriptors. Belongs to one thread."""

    def __init__(self) -> None:
        """Reserves a descriptor. Raises `OSError` if there is no free descriptor, or /proc is not mounted."""
        _descriptors()
        # AF_UNIX has the longest addresses, so that the kernel's answers for every family fit.
        self._hand = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._null = os.dup(self._hand.fileno())
        """An unconnected socket, to which the reserved descriptor refers while it refers to no other."""
        self._seen: dict[int, int] = {}
        """Inodes of sockets, by descriptor."""
        self.descriptors = 0
        """Number of open descriptors of the process at the last `scan`."""

    def scan(self) -> tuple[dict[int, int], list[int]]:
        """Returns the sockets that are new since the last scan, and the descriptors that are gone.

        New sockets are given as inode by descriptor. A descriptor is gone if it was closed or refers to another file.
        """
        seen: dict[int, int] = {}
        fstat, is_socket = os.fstat, stat.S_ISSOCK
        numbers = _descriptors()
        self.descriptors = len(numbers) - 1  # without the descriptor of the listing itself
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
        """Returns duplicates of the sockets that listen at these addresses (the form of `OpenSocket.local`)."""
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
        """Returns both ends of a connected socket; None if it is not connected or was closed."""
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
        """Returns the bytes that a TCP connection has received so far, or the unread bytes of a Unix socket.

        -1: it was closed.
        """
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
        """Shuts a connection down in both directions; the library that accepted it then closes it.

        Returns False if it was already closed.
        """
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
        """Closes a connection like `shut`, and drops the data that was received but not read.

        The library that accepted the connection would otherwise still read the data.
        """
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
        """Removes the filter of a connection, if it has one."""
        if self._take(number, inode):
            with contextlib.suppress(OSError):
                socket_filter.detach(self._hand)
            self._drop()

    def close(self) -> None:
        """Closes the reserved descriptors. The process's other sockets are not affected."""
        self._hand.close()
        with contextlib.suppress(OSError):
            os.close(self._null)
        self._null = -1

    def _take(self, number: int, inode: int) -> bool:
        """Makes the reserved descriptor refer to the socket. Returns False if the socket was closed."""
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
    """Returns the port of a TCP socket or the path of a Unix socket; empty for other sockets."""
    name = one.getsockname()
    if isinstance(name, tuple):
        return str(name[1]) if len(name) > 1 else ""
    return os.fsdecode(name)
