"""Listening sockets, with clear errors for addresses in use, and a lock so that only one daemon uses a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from hearthd.front.addresses import Address

MAX_PATH = 107
"""Maximum length of a Unix socket's path, in bytes (unix(7): `sun_path`, without its terminating NUL)."""


class ListenError(Exception):
    """The address cannot be used for listening. The text names the address, the reason and the remedy."""

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.permanent = permanent
        """True if no restart helps: a file or path in the configuration cannot be used, whatever other processes do."""


def check_free(address: Address, setting: str) -> None:
    """Raises `ListenError` if another socket listens on `address`.

    gRPC's own error contains neither the reason nor the port, so the address is tried here first.
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
    """Returns the error of an address that cannot be listened on. `setting`: its name in the section `listen`."""
    if error.errno == errno.EADDRINUSE:
        return ListenError(
            f"listen.{setting}: port {address.port} on {address.host} is in use, perhaps by another hearthd; "
            f"`ss -ltnp 'sport = :{address.port}'` shows which process uses it; stop it or configure another port"
        )
    return ListenError(f"listen.{setting}: {address} cannot be listened on: {error.strerror or error}")


class UnixSocket:
    """Exclusive use of the path of a Unix socket, by a lock file in the same directory while the daemon runs."""

    def __init__(self, path: str, *, public: bool = False, setting: str = "listen.unix") -> None:
        """Creates the object.

        With `public`, other users of the host may connect. `setting`: the setting that has the path.
        """
        self.path = Path(path)
        self._setting = setting
        self._public = public
        self._directory_mode = 0o755 if public else 0o700
        self._lock_path = Path(f"{path}.lock")
        self._lock = -1
        self._claimed = False
        self._created_directory: Path | None = None

    def claim(self) -> None:
        """Claims the path: creates its directory, and removes a socket that a daemon left behind.

        Raises `ListenError` if another daemon uses the path.
        """
        directory = self.path.parent
        try:
            if not directory.exists():
                with contextlib.suppress(FileExistsError):  # another daemon may create it at the same time
                    directory.mkdir(mode=self._directory_mode, parents=True)
                    directory.chmod(self._directory_mode)  # independent of the umask
                    self._created_directory = directory
            self._take_lock()
            self._remove_stale()
            self._claimed = True
        except OSError as error:
            self.release()
            raise self.unusable(error) from None
        except ListenError:
            self.release()
            raise

    def listen(self, backlog: int) -> socket.socket:
        """Returns a non-blocking socket that listens at the claimed path.

        Raises `ListenError`; the path is then released.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.setblocking(False)
            with self.umask():
                listener.bind(str(self.path))
            listener.listen(backlog)
        except OSError as error:
            listener.close()
            self.release()
            raise self.unusable(error) from None
        return listener

    @contextlib.contextmanager
    def umask(self) -> Iterator[None]:
        """Sets the umask for creating the socket: only its user may connect, or with `public` all users."""
        old_umask = os.umask(0o111 if self._public else 0o177)
        try:
            yield
        finally:
            os.umask(old_umask)

    def _take_lock(self) -> None:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(lock)
                if error.errno in (errno.EAGAIN, errno.EACCES):
                    raise self._in_use() from None
                raise
            # The process that released the lock may have removed the file that was opened here; the lock is then
            # worthless.
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
                f"{self._setting}: {self.path} exists and is not a socket; remove it or configure another path",
                permanent=True,
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(str(self.path))
            except (ConnectionRefusedError, FileNotFoundError):
                self.path.unlink(missing_ok=True)
                return
            except OSError as error:
                raise self._in_use() from error
        raise self._in_use()

    def _in_use(self) -> ListenError:
        return ListenError(
            f"{self._setting}: a daemon already serves {self.path}; stop it, or set {self._setting} to another path"
        )

    def unusable(self, error: OSError) -> ListenError:
        """Returns the error of a path that cannot be claimed or listened on."""
        return ListenError(f"{self._setting}: {self.path} cannot be used: {error.strerror or error}")

    def release(self) -> None:
        """Removes the socket, and releases the path."""
        if self._lock >= 0:
            if self._claimed:  # after a refused claim, the lock is held, but the socket belongs to another process
                self.path.unlink(missing_ok=True)
            self._claimed = False
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1
        if self._created_directory is not None:
            with contextlib.suppress(OSError):  # the directory may contain other files
                self._created_directory.rmdir()
            self._created_directory = None
