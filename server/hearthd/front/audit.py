"""The audit log: who did what, one JSON object a line, only ever appended to.

Each line holds the SHA-256 of the one before it (`prev`), so that none can be changed, removed or put in between
without breaking the chain behind it; `hearthd audit verify FILE` checks it. The chain does not show that lines at the
end are missing, nor that somebody who may write the file has written all of it anew: keep the last line's hash, which
verifying prints, elsewhere. Lines are written and synced by a thread, soon after the event and in the order of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import structlog

from hearth_proto.reasons import Refusal
from hearthd.front.tenants import Caller

log = structlog.get_logger("hearthd.audit")

GENESIS = "0" * 64
"""The `prev` of a first line that goes on from nothing."""
_MOST_PENDING = 10_000
_REMEMBERED_REFUSALS = 4096
_REPEATED = 60.0
_LONGEST = 1024
"""Characters of one value: what a client sent is cut."""


class Subject(Protocol):
    """A session, as far as the log needs it."""

    @property
    def id(self) -> str: ...
    @property
    def caller(self) -> Caller: ...


class AuditError(Exception):
    """The log cannot be opened; the text is one line for the person who configured it."""


class Audit:
    """Off without a path: then `record` does nothing."""

    def __init__(self, path: str = "") -> None:
        self.path = path
        self.lost = 0
        """Events that could not be written."""
        self._pending: deque[dict[str, Any]] = deque()
        self._refused: dict[tuple[str, str, str, str], float] = {}
        self._writer: asyncio.Task[None] | None = None
        self._file = _File(path) if path else None

    def open(self) -> None:
        """Raises `AuditError` where the file cannot be appended to, or another daemon does so."""
        if self._file is not None:
            self._file.open()

    def record(self, event: str, subject: Subject | None = None, caller: Caller | None = None, **fields: Any) -> None:
        """Notes an event: of a session, of a caller without one, or of neither. Never waits, never fails."""
        if self._file is None:
            return
        if len(self._pending) >= _MOST_PENDING:
            self.lost += 1
            return
        entry: dict[str, Any] = {"time": time.time(), "event": event}
        caller = caller if caller is not None or subject is None else subject.caller
        if caller is not None:
            known = {"tenant": caller.tenant.name, "credential": caller.credential, "peer": caller.peer}
            entry.update({key: value for key, value in known.items() if value})
            if caller.uid is not None:
                entry["uid"] = caller.uid
        if subject is not None:
            entry["session"] = subject.id
        entry.update({key: _cut(value) for key, value in fields.items()})
        self._pending.append(entry)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.get_running_loop().create_task(self._write(), name="audit")

    def refused(self, who: Subject | Caller, operation: str, refusal: Refusal) -> None:
        """Notes what a session or a caller was not allowed to do. What is tried again and again within a minute is
        noted once."""
        if self._file is None:
            return
        caller, subject = (who, None) if isinstance(who, Caller) else (who.caller, who)
        key = (caller.tenant.name, caller.credential, subject.id if subject is not None else "", operation)
        now = time.monotonic()
        if now - self._refused.get(key, -_REPEATED) < _REPEATED:
            return
        self._refused.pop(key, None)
        self._refused[key] = now
        if len(self._refused) > _REMEMBERED_REFUSALS:
            self._refused.pop(next(iter(self._refused)))
        self.record(
            "refused", subject, caller, operation=operation, reason=str(refusal.reason), why=refusal.message,
            **{key: value for key, value in refusal.details.items() if key in ("right", "quota")},
        )  # fmt: skip

    async def _write(self) -> None:
        assert self._file is not None
        while self._pending:
            entries = list(self._pending)
            self._pending.clear()
            failed = await asyncio.to_thread(self._file.append, entries)
            if failed:
                # The daemon goes on: a full disk must not take everybody's work with it. The next line that can be
                # written says how many are missing.
                self.lost += failed
                log.error("audit_lost", path=self.path, events=failed, why=self._file.why)

    async def reopen(self) -> None:
        """Goes on in a new file, after this one was moved away: its first line is chained to the old one's last."""
        await self._settle()
        if self._file is not None:
            await asyncio.to_thread(self._file.reopen)

    async def close(self) -> None:
        """Writes what is pending."""
        await self._settle()
        if self._file is not None:
            await asyncio.to_thread(self._file.close)
            self._file = None

    async def _settle(self) -> None:
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST:
        return value[:_LONGEST] + "..."
    return value


class _File:
    """The file; used by one thread at a time."""

    def __init__(self, path: str) -> None:
        self.why = ""
        self._path = path
        self._handle = -1
        self._head = GENESIS
        self._sequence = 0
        self._missing = 0
        self._torn = False
        """The file ends in the middle of a line: a write that broke off."""

    def open(self) -> None:
        try:
            self._open()
        except OSError as error:
            raise AuditError(f"audit.path: {self._path} cannot be appended to: {error.strerror or error}") from None
        lines, self._torn = _last_lines(self._path)
        if lines:
            self._head = hashlib.sha256(lines[-1]).hexdigest()
        for line in lines:
            with contextlib.suppress(ValueError, AttributeError):
                self._sequence = int(json.loads(line).get("seq", 0))

    def _open(self) -> None:
        self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise OSError(error.errno, "another process writes it") from None

    def reopen(self) -> None:
        self.close()
        try:
            self._open()
        except OSError as error:
            log.error("audit_reopen", path=self._path, why=error.strerror or str(error))

    def append(self, entries: Iterable[dict[str, Any]]) -> int:
        """Writes and syncs lines; how many could not be."""
        failed = 0
        for entry in entries:
            try:
                self._append(entry)
            except OSError as error:
                self.why = error.strerror or str(error)
                self._missing += 1
                failed += 1
        with contextlib.suppress(OSError):
            os.fsync(self._handle)
        return failed

    def _append(self, entry: dict[str, Any]) -> None:
        line = dict(entry)
        line["time"] = datetime.datetime.fromtimestamp(entry["time"], datetime.UTC).isoformat(timespec="microseconds")
        line["seq"] = self._sequence + 1
        if self._missing:
            line["missing"] = self._missing
        if self._torn:
            line["torn"] = True
        line["prev"] = self._head
        text = json.dumps(line, separators=(",", ":"), default=str).encode()
        data = (b"\n" if self._torn else b"") + text + b"\n"
        written = os.write(self._handle, data)
        if written < len(data):  # the disk is full in mid line: what is there of it is what the next line is chained to
            part = data[:written].lstrip(b"\n")
            if part:
                self._head = hashlib.sha256(part).hexdigest()
                self._torn = True
            raise OSError(28, "No space left on device")
        self._head = hashlib.sha256(text).hexdigest()
        self._sequence += 1
        self._missing, self._torn = 0, False

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _last_lines(path: str) -> tuple[list[bytes], bool]:
    """The last two lines of a file, and whether the last was broken off."""
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        while end and tail.count(b"\n") < 3:
            step = min(end, 64 << 10)
            end -= step
            file.seek(end)
            tail = file.read(step) + tail
    torn = bool(tail) and not tail.endswith(b"\n")
    lines = [line for line in tail.split(b"\n") if line]
    return lines[-2:], torn


# ---- verifying ----


class Verdict(NamedTuple):
    """What a check of a log found."""

    lines: int
    head: str
    """The hash of the last line."""
    begins: str
    """The `prev` of the first line: `GENESIS`, or the last line of the file before."""
    problems: list[str]
    """What is wrong, with line numbers; empty: the chain holds."""
    missing: int
    """Events that the daemon says it could not write."""


def verify(lines: Iterable[bytes]) -> Verdict:
    """Checks the chain of a log's lines."""
    head, begins, problems, missing, count = "", "", [], 0, 0
    sequence = 0
    broken = 0  # the line that was no JSON, if the one before was none
    for count, raw in enumerate(_stripped(lines), 1):
        try:
            entry = json.loads(raw)
            prev, number = str(entry["prev"]), int(entry["seq"])
        except (ValueError, TypeError, KeyError):
            if broken:
                problems.append(f"line {broken} is no entry of an audit log")
            broken, head = count, hashlib.sha256(raw).hexdigest()
            continue
        if broken and not entry.get("torn"):
            problems.append(f"line {broken} is no entry of an audit log")
        elif head and prev != head:
            problems.append(
                f"line {count} does not follow line {count - 1}: one was changed, or lines between are missing"
            )
        elif sequence and number != sequence + 1:
            problems.append(f"line {count} has number {number}, behind {sequence}")
        begins = begins or prev
        missing += int(entry.get("missing", 0))
        head, sequence, broken = hashlib.sha256(raw).hexdigest(), number, 0
    if broken:
        problems.append(f"line {broken}, the last one, is incomplete")
    return Verdict(count, head, begins, problems, missing)


def _stripped(lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.strip(b"\n"):
            yield line.rstrip(b"\n")
