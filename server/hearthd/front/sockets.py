"""Listening sockets: clear errors where an address is taken, and one daemon only on a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path

from hearthd.front.addresses import Address


class ListenError(Exception):
    """An address cannot be listened on; the text says which, why, and what to do."""


def check_free(address: Address, setting: str) -> None:
    """Raises `ListenError` where something else listens on `address`.

    gRPC's own error says neither the reason nor the port; asking the kernel first does.
    """
    if not address.port:
        return
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError as error:
            raise listen_error(address, setting, error) from None


def listen_error(address: Address, setting: str, error: OSError) -> ListenError:
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"listen.{setting}: port {address.port} on {address.host} is in use, perhaps by another hearthd; "
            f"`ss -ltnp 'sport = :{address.port}'` says by whom; stop it or configure another port"
        )
    return ListenError(f"listen.{setting}: {address} cannot be listened on: {error.strerror or error}")


class UnixSocket:
    """The right to a Unix socket's path, held by a lock beside it for as long as the daemon lives."""

    def __init__(self, path: str, *, public: bool = False, setting: str = "listen.unix") -> None:
        """`public`: other users of the host may connect. `setting`: where the path comes from."""
        self.path = Path(path)
        self._setting = setting
        self._public = public
        self._directory_mode = 0o755 if public else 0o700
        self._lock_path = Path(f"{path}.lock")
        self._lock = -1
        self._ours = False
        self._made: Path | None = None

    def claim(self) -> None:
        """Takes the path: makes its directory, refuses where a daemon lives behind it, removes what a dead one left.
        Raises `ListenError`."""
        directory = self.path.parent
        try:
            if not directory.exists():
                with contextlib.suppress(FileExistsError):  # another daemon makes it at the same moment
                    directory.mkdir(mode=self._directory_mode, parents=True)
                    directory.chmod(self._directory_mode)  # whatever the umask
                    self._made = directory
            self._take_lock()
            self._remove_stale()
            self._ours = True
        except OSError as error:
            self.release()
            raise self.unusable(error) from None
        except ListenError:
            self.release()
            raise

    def listen(self, backlog: int) -> socket.socket:
        """A listening socket at the path, which was claimed; non-blocking. Raises `ListenError`."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o111 if self._public else 0o177)
        try:
            listening.setblocking(False)
            listening.bind(str(self.path))
            listening.listen(backlog)
        except OSError as error:
            listening.close()
            raise self.unusable(error) from None
        finally:
            os.umask(before)
        return listening

    def _take_lock(self) -> None:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise self._taken() from None
                raise
            # The process that released it may have removed the file that was opened here: then the lock guards nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(lock).st_ino == self._lock_path.stat().st_ino:
                    self._lock = lock
                    return
            os.close(lock)

    def _remove_stale(self) -> None:
        if not self.path.exists() and not self.path.is_symlink():
            return
        if not self.path.is_socket():
            raise ListenError(
                f"{self._setting}: {self.path} exists and is no socket; remove it or configure another path"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.path))
            except (ConnectionRefusedError, FileNotFoundError):
                self.path.unlink(missing_ok=True)
                return
            except OSError as error:
                raise self._taken() from error
        raise self._taken()

    def _taken(self) -> ListenError:
        return ListenError(
            f"{self._setting}: a daemon already serves {self.path}; stop it, or give this one another path with --unix"
        )

    def unusable(self, error: OSError) -> ListenError:
        return ListenError(f"{self._setting}: {self.path} cannot be used: {error.strerror or error}")

    def release(self) -> None:
        """Removes the socket and lets go of the path."""
        if self._lock >= 0:
            if self._ours:  # a claim that was refused holds the lock, but what is there belongs to another process
                self.path.unlink(missing_ok=True)
            self._ours = False
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
        if self._made is not None:
            with contextlib.suppress(OSError):  # others may have put something there
                self._made.rmdir()
            self._made = None
