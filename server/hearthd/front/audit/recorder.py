"""The audit log: events and their callers, one JSON object per line, append-only.

Each line holds the SHA-256 of the previous line (`prev`), so that no line can be changed, removed or inserted without
breaking the chain. A message authentication code (`mac`) keeps the log from being rewritten without the key. The head
of the chain is anchored elsewhere at intervals, so that the end of the log cannot be removed unnoticed (`anchors`).
`hearthd audit verify FILE` checks all three. A thread writes and syncs lines shortly after the event, in the order of
events.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import structlog

from hearth_proto.reasons import Refusal
from hearthd.front.audit.log_file import GENESIS, AuditError, LogFile
from hearthd.front.config.audit import AuditSettings
from hearthd.front.tenancy.tenants import Caller, NamedSession

__all__ = ["GENESIS", "Audit", "AuditError"]

log = structlog.get_logger("hearthd.audit")

_MAX_PENDING = 10_000
_MAX_REFUSALS = 4096
_REPEAT_S = 60.0
_MAX_VALUE_CHARS = 1024
"""Maximum length of one value in characters. Longer values, which clients may send, are truncated."""


class Audit:
    """The recorder of the audit log. Without a path the log is off, and `record` does nothing."""

    def __init__(self, settings: AuditSettings | None = None) -> None:
        settings = settings or AuditSettings()
        self.path = settings.path
        self.lost = 0
        """Number of events that could not be written."""
        self._pending: deque[dict[str, Any]] = deque()
        self._recent_refusals: dict[tuple[str, str, str, str], float] = {}
        self._writer: asyncio.Task[None] | None = None
        self._anchoring: asyncio.TimerHandle | None = None
        self._anchor_due = False
        self._file = LogFile(settings) if settings.path else None

    def open(self) -> None:
        """Opens the log. Raises `AuditError` if the file cannot be appended to, or another daemon writes it."""
        if self._file is not None:
            self._file.open()

    @property
    def entries(self) -> tuple[int, int]:
        """The numbers of the last entry and of the last anchored entry."""
        return (self._file.entries, self._file.anchors.anchored) if self._file is not None else (0, 0)

    def record(
        self, event: str, subject: NamedSession | None = None, caller: Caller | None = None, **fields: Any
    ) -> None:
        """Records an event of a session, of a caller without a session, or of neither.

        Does not block, and never raises.
        """
        if self._file is None:
            return
        if len(self._pending) >= _MAX_PENDING:
            self.lost += 1
            return
        entry: dict[str, Any] = {"time": time.time(), "event": event}
        caller = caller if caller is not None or subject is None else subject.caller
        if caller is not None:
            identity = {"tenant": caller.tenant.name, "credential": caller.credential, "peer": caller.peer}
            entry.update({key: value for key, value in identity.items() if value})
            if caller.uid is not None:
                entry["uid"] = caller.uid
        if subject is not None:
            entry["session"] = subject.id
        entry.update({key: _truncated(value) for key, value in fields.items()})
        self._pending.append(entry)
        self._start_writer()

    def _start_writer(self) -> None:
        if self._file is not None and (self._writer is None or self._writer.done()):
            self._writer = asyncio.get_running_loop().create_task(self._write(self._file), name="audit")

    def refused(self, source: NamedSession | Caller, operation: str, refusal: Refusal) -> None:
        """Records an operation that a session or a caller was not allowed to do.

        Repetitions within a minute are not recorded.
        """
        if self._file is None:
            return
        caller, subject = (source, None) if isinstance(source, Caller) else (source.caller, source)
        key = (caller.tenant.name, caller.credential, subject.id if subject is not None else "", operation)
        now = time.monotonic()
        if now - self._recent_refusals.get(key, -_REPEAT_S) < _REPEAT_S:
            return
        self._recent_refusals.pop(key, None)
        self._recent_refusals[key] = now
        if len(self._recent_refusals) > _MAX_REFUSALS:
            self._recent_refusals.pop(next(iter(self._recent_refusals)))
        self.record(
            "refused", subject, caller, operation=operation, reason=str(refusal.reason), why=refusal.message,
            **{key: value for key, value in refusal.details.items() if key in ("right", "quota")},
        )  # fmt: skip

    async def _write(self, file: LogFile) -> None:
        while self._pending:
            entries = list(self._pending)
            self._pending.clear()
            failed = await asyncio.to_thread(file.append, entries)
            if failed:
                # The daemon continues: a full disk must not end the work of all sessions. The next line that can be
                # written contains the number of missing entries.
                self.lost += failed
                log.error("audit_lost", path=self.path, events=failed, why=file.last_error)
        anchors = file.anchors
        if anchors and self._anchoring is None:
            if self._anchor_due or not anchors.due_in:
                self._anchor_due = False
                await asyncio.to_thread(file.anchor)
                if self._pending:
                    await self._write(file)
            else:
                self._anchoring = asyncio.get_running_loop().call_later(anchors.due_in, self._anchor)

    def _anchor(self) -> None:
        """Sets an anchor now, at the end of the interval since the last one."""
        self._anchoring, self._anchor_due = None, True
        self._start_writer()

    async def reopen(self) -> None:
        """Continues in a new file after the old one was renamed.

        The first line of the new file is chained to the last line of the old one.
        """
        await self.flush()
        if self._file is not None:
            await asyncio.to_thread(self._file.reopen)
            await asyncio.to_thread(self._file.anchor)

    async def close(self) -> None:
        """Writes the pending events, sets a last anchor, and closes the file. Later events are not recorded."""
        file, self._file = self._file, None
        await self.flush()
        if self._anchoring is not None:
            self._anchoring.cancel()
            self._anchoring = None
        if file is not None:
            await asyncio.to_thread(file.anchor)
            await asyncio.to_thread(file.close)

    async def flush(self) -> None:
        """Waits until the events that were recorded so far are written or counted as lost."""
        if self._writer is not None:
            await asyncio.gather(self._writer, return_exceptions=True)


def _truncated(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_VALUE_CHARS:
        return value[:_MAX_VALUE_CHARS] + "..."
    return value
