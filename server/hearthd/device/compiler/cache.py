"""Cache of compiled modules on disk, shared by the broker processes of the node.

The cache is content-addressed, authenticated and bounded. An entry is code that a device process loads and runs. Each
entry carries an HMAC under the daemon's key over its name and its content, so a file that another process wrote, or
moved here from another name, is rejected. If the cache is divided, an entry's name also depends on the tenant, so that
the duration of a compile does not reveal to a tenant what others have compiled.

The cache never makes a launch fail: an entry that cannot be read is a miss, and one that cannot be written is not
cached.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hearthd.device.backend.compiler import Assembly, Image, Job, LinkJob
from hearthd.shared import disk

MAGIC = b"hearth-image-3\n"
DIGEST_BYTES = 32
MAX_ENTRY_BYTES = 256 << 20
REPORT_S = 60.0
"""Minimum interval in seconds between two reports of a full disk."""
_LOCK_POLL_S = 0.05
"""Interval in seconds at which the lock of another process's compile is tried again."""


def key(job: Job, identity: bytes) -> str:
    """Returns the content address: the hash of everything that determines the result.

    Each part is prefixed with its length, so that different inputs cannot be hashed alike.
    """
    if isinstance(job, Assembly):
        digest = hashlib.sha256(b"hearth-assembly-1")
        parts = [identity, job.code]
    elif isinstance(job, LinkJob):
        digest = hashlib.sha256(b"hearth-link-1")
        parts = [identity, *(key(item, b"").encode() for item in job.inputs), b"", *map(str.encode, job.options)]
    else:
        digest = hashlib.sha256(b"hearth-module-1")
        parts = [identity, job.code.encode()]
        for group in (job.options, job.name_expressions, [part for header in job.headers for part in header]):
            parts.append(len(group).to_bytes(8, "little"))
            parts += [text.encode() for text in group]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


class CompileCache:
    """A cache directory, with entries at `<first two hex digits>/<name>`. Safe for concurrent threads and processes.

    Args:
        directory: Path of the directory; empty: nothing is cached.
        max_bytes: Limit of the total size of the entries; the least recently used ones are removed first.
        secret: Key for the authentication of entries.
        divided: True if each tenant has separate entries; `pin` then sets the tenant.
    """

    def __init__(self, directory: str, max_bytes: int, secret: bytes = b"", divided: bool = False) -> None:
        self.directory = str(Path(directory)) if directory else ""
        """Path of the cache; empty: nothing is cached."""
        self._max_bytes = max_bytes
        self._secret = secret
        self._divided = divided
        self._tenant: str | None = None
        self._reported_at = float("-inf")
        self.report: Callable[[str], None] = lambda _message: None
        """Called at intervals, on any thread, while the disk is full, so that code is not cached."""

    def pin(self, tenant: str) -> None:
        """Sets the tenant whose entries are used if the cache is divided. Only the first call has an effect."""
        if self._tenant is None:
            self._tenant = tenant

    def load(self, name: str) -> Image | None:
        """Returns the image of this name and marks it as most recently used; None if there is no valid entry.

        Removes a damaged entry. Never raises for an entry that cannot be read.
        """
        path = self._path(name)
        if path is None:
            return None
        try:
            if path.stat().st_size > MAX_ENTRY_BYTES:
                return None
            image = self._decode(path)
            os.utime(path)  # `_trim` removes the least recently used entries
            return image
        except OSError:
            return None  # usually there is no such file; another process may be writing it at this moment
        except (ValueError, KeyError, TypeError, struct.error):  # damaged, or not written by this version
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return None

    def store(self, name: str, image: Image) -> None:
        """Writes the image under this name, then removes the least recently used entries above the limit.

        Does not raise OSError: an image that cannot be written is not cached, and `report` is called if the disk is
        full.
        """
        path = self._path(name)
        if path is None:
            return
        try:
            data = self._encode(path, image)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
                try:
                    file.write(data)
                    file.close()
                    Path(file.name).replace(path)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            self._trim()
        except OSError as error:
            now = time.monotonic()
            if disk.is_full(error) and now - self._reported_at >= REPORT_S:
                self._reported_at = now
                self.report(disk.refusal(self.directory, "a compiled module", "cache.dir").message)

    @contextlib.contextmanager
    def single_flight(self, name: str, check: Callable[[], None]) -> Iterator[None]:
        """Ensures that only one process of the node compiles `name` at a time. Blocks while another process does.

        The other processes then find the image in the cache. `check` is called while this one waits, and ends the wait
        by raising an exception.
        """
        path = self._path(name)
        descriptor = -1
        other_compiles = False
        try:
            if path is not None:
                with contextlib.suppress(OSError):
                    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    while other_compiles := not _try_lock(descriptor):
                        check()
                        time.sleep(_LOCK_POLL_S)
            yield
        finally:
            if descriptor >= 0:
                if not other_compiles:
                    with contextlib.suppress(OSError):
                        path.with_suffix(".lock").unlink(missing_ok=True)  # type: ignore[union-attr]
                os.close(descriptor)

    def _path(self, name: str) -> Path | None:
        if not self.directory:
            return None
        if self._divided:
            name = self._mac(b"tenant", (self._tenant or "").encode(), name.encode()).hex()
        return Path(self.directory, name[:2], name)

    def _mac(self, *parts: bytes) -> bytes:
        code = hmac.new(self._secret, digestmod=hashlib.sha256)
        for part in parts:
            code.update(len(part).to_bytes(8, "little"))
            code.update(part)
        return code.digest()

    def _encode(self, path: Path, image: Image) -> bytes:
        head = json.dumps({"names": dict(image.names), "log": image.log, "kinds": dict(image.kinds)}).encode()
        body = struct.pack("<I", len(head)) + head + image.code
        return MAGIC + self._mac(b"entry", path.name.encode(), body) + body

    def _decode(self, path: Path) -> Image:
        data = path.read_bytes()
        if not data.startswith(MAGIC):
            raise ValueError("no image")
        body = data[len(MAGIC) + DIGEST_BYTES :]
        code = data[len(MAGIC) : len(MAGIC) + DIGEST_BYTES]
        if not hmac.compare_digest(code, self._mac(b"entry", path.name.encode(), body)):
            raise ValueError("the authentication code is wrong")
        (length,) = struct.unpack_from("<I", body)
        head = json.loads(body[4 : 4 + length])
        return Image(code=body[4 + length :], names=head["names"], log=head["log"], kinds=head["kinds"])

    def _trim(self) -> None:
        entries: list[tuple[float, int, Path]] = []
        for path in Path(self.directory).glob("??/*"):
            if path.suffix == "" and not path.name.startswith("."):
                with contextlib.suppress(OSError):
                    status = path.stat()
                    entries.append((status.st_mtime, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size


def _try_lock(descriptor: int) -> bool:
    """Returns False if another process has the lock. Raises OSError if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def cache_directory(configured: str) -> str:
    """Returns the configured directory for compiled modules, created if necessary.

    Returns an empty string if none is configured, if it cannot be used, or if other users can write to it.
    """
    if not configured:
        return ""
    try:
        Path(configured).mkdir(mode=0o700, parents=True, exist_ok=True)
        status = Path(configured).stat()
    except OSError:
        return ""
    # Code in the directory is run, so a directory that another user could write to must not be used.
    return configured if status.st_uid == os.getuid() and not status.st_mode & 0o022 else ""
