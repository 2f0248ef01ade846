"""The file of an audit log. Lines are only ever appended to it."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from hearthd.front.audit.anchors import Anchors
from hearthd.front.audit.keys import KeyFileError, Keyring, load, load_or_create
from hearthd.front.config.audit import AuditSettings

log = structlog.get_logger("hearthd.audit")

GENESIS = "0" * 64
"""The `prev` of a first line without a predecessor."""


ROTATED = "rotated"
"""The event that ends a file that was renamed: the log continues in another file."""


class AuditError(Exception):
    """The log cannot be opened. The text is one line for the operator."""


class LogFile:
    """The file and the head of its hash chain. Thread-safe, except `open`."""

    def __init__(self, settings: AuditSettings) -> None:
        self.last_error = ""
        """The reason of the last failed write."""
        self.anchors = Anchors(settings.anchor_path, settings.path, settings.anchor_interval)
        self._settings = settings
        self._lock = threading.Lock()
        self._path = settings.path
        self._keys: Keyring | None = None
        self._signer = ""
        """The id of the key that signed the last line."""
        self._handle = -1
        self._head = GENESIS
        self._sequence = 0
        self._missing = 0
        self._torn = False
        """True if the file ends in the middle of a line, because a write was interrupted."""
        self._gap: dict[str, Any] = {}
        """Fields for the next line, which report that anchored entries are missing."""

    @property
    def entries(self) -> int:
        """The number of the last entry."""
        return self._sequence

    def open(self) -> None:
        """Opens the file and the keys, and compares the file with the newest anchor. Raises `AuditError`."""
        try:
            self._open()
        except OSError as error:
            raise AuditError(f"audit.path: {self._path} cannot be appended to: {error.strerror or error}") from None
        self._open_keys()
        lines, self._torn = _last_lines(self._path)
        if lines:
            self._head = hashlib.sha256(lines[-1]).hexdigest()
        for line in lines:
            with contextlib.suppress(ValueError, AttributeError):
                entry = json.loads(line)
                self._sequence, self._signer = int(entry.get("seq", 0)), str(entry.get("key", ""))
        self._check_anchor()

    def _open_keys(self) -> None:
        path = self._settings.key_path
        if not path:
            return
        try:
            self._keys, created = load_or_create(path)
        except KeyFileError as error:
            if self._settings.key != "auto":
                self.close()
                raise AuditError(f"audit.key: {error}") from None
            log.warning("audit_unsigned", why=str(error), fix="set audit.key to a file that the daemon can create")
            return
        if created:
            log.warning(
                "audit_key_made", path=path, key=self._keys.current.id, fix="keep a copy of the key file elsewhere"
            )

    def _check_anchor(self) -> None:
        """Checks that the entry that was anchored last is still in the file."""
        newest = self.anchors.newest()
        if newest is None or (self._keys is not None and not newest.is_signed_by(self._keys)):
            return
        if not self._sequence and self._head == GENESIS:  # the file was renamed while no daemon was running
            self._head, self._sequence, self._signer = newest.head, newest.sequence, newest.key
            log.warning("audit_goes_on", path=self._path, after=newest.sequence, why="the file is new")
        elif newest.sequence > self._sequence or (newest.sequence == self._sequence and newest.head != self._head):
            log.error(
                "audit_tampered", path=self._path, anchored=newest.sequence, found=self._sequence,
                why="entries that were anchored are missing or changed",
            )  # fmt: skip
            self._gap = {"gap": newest.sequence, "gap_head": newest.head}
            self._sequence = max(self._sequence, newest.sequence)

    def _open(self) -> None:
        self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._close()
            raise OSError(error.errno, "another process writes to the log") from None

    def reopen(self) -> None:
        """Continues in the file that now has the path, and reads the keys again."""
        with self._lock:
            if self._is_renamed():
                self._append([{"time": time.time(), "event": ROTATED}])
            self._close()
            try:
                self._open()
            except OSError as error:
                log.error("audit_reopen", path=self._path, why=error.strerror or str(error))
            if self._keys is not None:
                try:
                    self._keys = load(self._settings.key_path)
                except KeyFileError as error:
                    log.error("audit_key", why=str(error), action="the previous keys remain in use")

    def _is_renamed(self) -> bool:
        """Returns True if the path now belongs to another file, or to none."""
        if self._handle < 0:
            return False
        try:
            return not os.path.samestat(os.fstat(self._handle), os.stat(self._path))  # noqa: PTH116
        except OSError:
            return True

    def append(self, entries: Iterable[dict[str, Any]]) -> int:
        """Writes and syncs lines. Returns the number of entries that could not be written."""
        with self._lock:
            return self._append(entries)

    def _append(self, entries: Iterable[dict[str, Any]]) -> int:
        failed = 0
        for entry in entries:
            try:
                self._append_entry(entry)
            except OSError as error:
                self.last_error = error.strerror or str(error)
                self._missing += 1
                failed += 1
        if self._handle >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._handle)
        return failed

    def anchor(self) -> None:
        """Sets an anchor for the present head."""
        with self._lock:
            self.anchors.set(self._sequence, self._head, self._keys.current if self._keys is not None else None)

    def _append_entry(self, entry: dict[str, Any]) -> None:
        if self._handle < 0:
            raise OSError(errno.EBADF, "the file is not open")
        if self._keys is not None and self._signer not in ("", self._keys.current.id):
            previous = self._keys.find(self._signer)
            if previous is not None:  # signed by the old key, so that only its holder can introduce a new key
                key_entry = {"time": entry["time"], "event": "audit_key", "next": self._keys.current.id}
                self._write(key_entry, previous)
        self._write(entry, self._keys.current if self._keys is not None else None)

    def _write(self, entry: dict[str, Any], key: Any) -> None:
        line = dict(entry)
        line["time"] = datetime.datetime.fromtimestamp(entry["time"], datetime.UTC).isoformat(timespec="microseconds")
        line["seq"] = self._sequence + 1
        if self._missing:
            line["missing"] = self._missing
        if self._torn:
            line["torn"] = True
        line |= self._gap
        line["prev"] = self._head
        if key is not None:
            line["key"] = key.id
        # Printable ASCII only: control characters in what clients sent are escaped.
        text = json.dumps(line, separators=(",", ":"), default=str, ensure_ascii=True).encode()
        if key is not None:
            text = key.seal(text)
        data = (b"\n" if self._torn else b"") + text + b"\n"
        written = os.write(self._handle, data)
        # If the disk is full in the middle of a line, the next line is chained to the part that was written.
        if written < len(data):
            fragment = data[:written].lstrip(b"\n")
            if fragment:
                self._head = hashlib.sha256(fragment).hexdigest()
                self._torn = True
            raise OSError(28, "No space left on device")
        self._head = hashlib.sha256(text).hexdigest()
        self._sequence += 1
        self._signer = key.id if key is not None else ""
        self._missing, self._torn, self._gap = 0, False, {}

    def close(self) -> None:
        """Closes the file, which also releases its lock. Does nothing if it is closed."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _last_lines(path: str) -> tuple[list[bytes], bool]:
    """Returns the last two lines of a file, and whether the last one is incomplete."""
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and tail.count(b"\n") < 3:
            size = min(end, 64 << 10)
            end -= size
            file.seek(end)
            tail = file.read(size) + tail
    torn = bool(tail) and not tail.endswith(b"\n")
    lines = [line for line in tail.split(b"\n") if line]
    return lines[-2:], torn
