"""Anchors: signed heads of an audit log, kept where an attacker who can rewrite the log cannot reach them.

An anchor contains the number and the hash of the last entry, so that neither this entry nor any earlier one can be
changed or removed unnoticed. It is one word of text, ``hearth-anchor:`` and base64, which can be put into any log.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime
import json
import os
import re
import syslog
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from hearthd.front.audit.keys import AuditKey, Keyring, write_synced
from hearthd.front.config.audit import LOG, SYSLOG

log = structlog.get_logger("hearthd.audit")

_WORD = re.compile(rb"hearth-anchor:([A-Za-z0-9+/=]{16,4096})")
TRIM = 1 << 20
"""Size of an anchor file, in bytes, above which all anchors except the newest are dropped, if the file allows it."""


class Anchor(NamedTuple):
    """The head of a log at a point in time."""

    sequence: int
    head: str
    time: str
    """The time in ISO 8601, UTC."""
    log: str
    """The path of the log."""
    key: str
    """The id of the key that signed the anchor. Empty: it is not signed."""
    raw: bytes

    @property
    def word(self) -> str:
        """The anchor as one word of text, in which `read` finds it."""
        return "hearth-anchor:" + base64.b64encode(self.raw).decode()

    def is_signed_by(self, keys: Keyring) -> bool:
        """Returns True if one of `keys` signed the anchor."""
        key = keys.find(self.key)
        return key is not None and key.is_sealed(self.raw)


def make(path: str, sequence: int, head: str, key: AuditKey | None) -> Anchor:
    """Returns an anchor with the present time."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    signer = key.id if key is not None else ""
    body = {"log": path, "time": now, "seq": sequence, "head": head, "key": signer}
    raw = json.dumps(body, separators=(",", ":")).encode()
    return Anchor(sequence, head, now, path, signer, key.seal(raw) if key is not None else raw)


def read(lines: Iterable[bytes]) -> Iterator[Anchor]:
    """Yields the anchors in any text: a file of anchors, a journal, or a log."""
    for line in lines:
        for match in _WORD.finditer(line):
            try:
                raw = base64.b64decode(match[1], validate=True)
                body = json.loads(raw)
                yield Anchor(
                    int(body["seq"]), str(body["head"]), str(body["time"]), str(body["log"]), str(body["key"]), raw
                )
            except (ValueError, KeyError, TypeError, binascii.Error):
                continue


class Anchors:
    """The anchors of one log. Used by one thread at a time."""

    def __init__(self, destination: str, path: str, interval: float) -> None:
        self.destination = destination
        """`LOG`, `SYSLOG` or the path of a file. Empty: the log is not anchored."""
        self.anchored = 0
        """The number of the last anchored entry."""
        self.failed = 0
        self._path = path
        self._interval = interval
        self._last_set_at = -interval

    def __bool__(self) -> bool:
        return bool(self.destination)

    @property
    def due_in(self) -> float:
        """Seconds until the next anchor may be set."""
        return max(0.0, self._last_set_at + self._interval - time.monotonic())

    def newest(self) -> Anchor | None:
        """Returns the newest anchor of this log in the anchor file; None: none is known."""
        if self.destination in ("", LOG, SYSLOG):
            return None
        try:
            with Path(self.destination).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - (64 << 10)))
                anchors = [anchor for anchor in read(file) if anchor.log == self._path]
        except OSError:
            return None
        return anchors[-1] if anchors else None

    def set(self, sequence: int, head: str, key: AuditKey | None) -> None:
        """Sets an anchor. Never raises: an error is logged, and the next entry tries again."""
        if not self.destination or not sequence or sequence == self.anchored:
            return
        anchor = make(self._path, sequence, head, key)
        self._last_set_at = time.monotonic()
        if self.destination == LOG:
            log.info("audit_anchor", entry=sequence, anchor=anchor.word)
        elif self.destination == SYSLOG:
            syslog.openlog("hearthd-audit", syslog.LOG_PID, syslog.LOG_AUTHPRIV)
            syslog.syslog(syslog.LOG_NOTICE, f"entry={sequence} {anchor.word}")
        else:
            try:
                self._append(anchor)
            except OSError as error:
                self.failed += 1
                if self.failed == 1:
                    log.error("audit_anchor_failed", path=self.destination, why=error.strerror or str(error))
                return
        self.failed = 0
        self.anchored = sequence

    def _append(self, anchor: Anchor) -> None:
        path = Path(self.destination)
        if not path.parent.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        data = f"{anchor.word}\n".encode()
        with contextlib.suppress(OSError):
            if path.stat().st_size > TRIM:
                self._replace(path, data)
                return
        write_synced(self.destination, os.O_CREAT | os.O_APPEND, data)

    def _replace(self, path: Path, data: bytes) -> None:
        """Replaces the file.

        Raises `OSError` for a file to which data can only be appended (`chattr +a`). Such a file then grows.
        """
        temporary = f"{path}.{os.getpid()}"
        write_synced(temporary, os.O_CREAT | os.O_TRUNC, data)
        try:
            os.replace(temporary, path)  # noqa: PTH105
        except OSError:
            Path(temporary).unlink()
            raise
