"""The process's own sockets, read from the kernel: the connections of a listener that another library has accepted.

gRPC's C core accepts connections itself and does not report them to Python. `/proc/self/fd` lists the process's
descriptors. Each is examined through one reserved descriptor, to which it is copied by `dup2`. A scan therefore needs
no free descriptor, and the socket that is shut down is certainly the one that was examined, even if gRPC's threads
close descriptors meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
import stat
import struct
import termios
from collections.abc import Collection, Iterator
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
        self._reserved = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._null = os.dup(self._reserved.fileno())
        """An unconnected socket, to which the reserved descriptor refers while it refers to no other."""
        self._inodes: dict[int, int] = {}
        """Inodes of sockets, by descriptor."""
        self.descriptors = 0
        """Number of open descriptors of the process at the last `scan`."""

    def scan(self) -> tuple[dict[int, int], list[int]]:
        """Returns the sockets opened and the descriptors closed since the last scan.

        Opened sockets are given as inode by descriptor. A descriptor that refers to another file counts as closed.
        """
        inodes: dict[int, int] = {}
        fstat, is_socket = os.fstat, stat.S_ISSOCK
        numbers = _descriptors()
        self.descriptors = len(numbers) - 1  # without the descriptor of the listing itself
        for name in numbers:
            number = int(name)
            try:
                status = fstat(number)
            except OSError:
                continue
            if is_socket(status.st_mode):
                inodes[number] = status.st_ino
        previous, self._inodes = self._inodes, inodes
        opened = {number: inode for number, inode in inodes.items() if previous.get(number) != inode}
        closed = [number for number, inode in previous.items() if inodes.get(number) != inode]
        return opened, closed

    def find_listeners(self, addresses: Collection[str]) -> list[socket.socket]:
        """Returns duplicates of the sockets that listen at these addresses (the form of `OpenSocket.local`)."""
        duplicates = []
        for number in map(int, _descriptors()):
            try:
                if not stat.S_ISSOCK(os.fstat(number).st_mode):
                    continue
                duplicate = socket.socket(fileno=os.dup(number))
            except OSError:
                continue
            if _is_listening(duplicate) and _local(duplicate) in addresses:
                duplicates.append(duplicate)
            else:
                duplicate.close()
        return duplicates

    def find(self, number: int, inode: int) -> OpenSocket | None:
        """Returns both ends of a connected socket; None if it is not connected or was closed."""
        try:
            with self._redirected(number, inode) as sock:
                local, peer = _local(sock), sock.getpeername()
                if sock.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN) == socket.AF_UNIX:
                    pid, uid, _ = credentials_of(sock)
                    return OpenSocket(local, f"uid:{uid}", "", pid)
                return OpenSocket(local, str(peer[0]), grpc_name(str(peer[0]), int(peer[1])), 0)
        except (OSError, ValueError, TypeError, IndexError):
            return None

    def received(self, number: int, inode: int, *, tcp: bool) -> int:
        """Returns the bytes that a TCP connection has received so far, or the unread bytes of a Unix socket.

        -1: it was closed.
        """
        try:
            with self._redirected(number, inode) as sock:
                if not tcp:
                    return int(struct.unpack("=i", fcntl.ioctl(sock, termios.FIONREAD, b"\0" * 4))[0])
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
                return int(_BYTES_RECEIVED.unpack_from(info)[0]) if len(info) >= _BYTES_RECEIVED.size else 0
        except OSError:
            return -1

    def disconnect(self, number: int, inode: int, *, drops_unread: bool) -> bool:
        """Shuts a connection down in both directions; the library that accepted it then closes it.

        With `drops_unread`, data that was received over TCP and not read is dropped, which the library would otherwise
        still read. Returns False if the connection was already closed.
        """
        try:
            with self._redirected(number, inode) as sock:
                if drops_unread and sock.getsockopt(socket.SOL_SOCKET, _SO_DOMAIN) != socket.AF_UNIX:
                    return int(_connect(sock.fileno(), _UNSPECIFIED, len(_UNSPECIFIED))) == 0
                sock.shutdown(socket.SHUT_RDWR)
                return True
        except OSError:
            return False

    def remove_filter(self, number: int, inode: int) -> None:
        """Removes the filter of a connection, if it has one."""
        with contextlib.suppress(OSError), self._redirected(number, inode) as sock:
            socket_filter.detach(sock)

    def close(self) -> None:
        """Closes the reserved descriptors. The process's other sockets are not affected."""
        self._reserved.close()
        with contextlib.suppress(OSError):
            os.close(self._null)
        self._null = -1

    @contextlib.contextmanager
    def _redirected(self, number: int, inode: int) -> Iterator[socket.socket]:
        """Makes the reserved descriptor refer to the socket meanwhile. Raises `OSError` if the socket was closed."""
        reserved = self._reserved.fileno()
        os.dup2(number, reserved, inheritable=False)
        try:
            if os.fstat(reserved).st_ino != inode:
                raise OSError(errno.EBADF, "another file has the descriptor")
            yield self._reserved
        finally:
            os.dup2(self._null, reserved, inheritable=False)


def _descriptors() -> list[str]:
    return os.listdir("/proc/self/fd")  # noqa: PTH208 - several times a second, and paths are not wanted


def _is_listening(sock: socket.socket) -> bool:
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _local(sock: socket.socket) -> str:
    """Returns the port of a TCP socket or the path of a Unix socket; empty for other sockets."""
    address = sock.getsockname()
    if isinstance(address, tuple):
        return str(address[1]) if len(address) > 1 else ""
    return os.fsdecode(address)
