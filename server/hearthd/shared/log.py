"""Logging: one line for each event, JSON or console format, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, MutableMapping
from typing import Any

from hearthd.shared import plain_logs  # noqa: F401, isort: skip - before structlog

import structlog

_LEVELS = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
_processors: list[Any] = []
"""Processors of all loggers. Changed in place, so that changes apply to existing loggers, too."""
_threshold = logging.INFO

THROTTLE_S = 60.0
"""Default interval in seconds between two lines of one kind."""
_MAX_KINDS = 1024
"""Largest number of kinds whose last lines are remembered."""


def configure(level: str = "info", format: str = "auto") -> None:
    """Configures structlog for the whole process.

    Records of libraries that use `logging` (from level warning) get the same format. May be called again: the last call
    applies to all loggers.
    """
    global _threshold  # noqa: PLW0603 - there is one log
    if format == "auto":
        format = "console" if sys.stderr.isatty() else "json"
    _threshold = _LEVELS[level]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if format == "json":
        final: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
        final = [structlog.processors.format_exc_info, _escape_values, renderer]
    _processors[:] = [_filter_by_level, *shared, *final]
    structlog.configure(
        processors=_processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, _add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_threshold, logging.WARNING))


class WithoutErrors(logging.Filter):
    """Drops a library's records of exceptions of one class. Clients can cause such exceptions, and could fill the log.

    Args:
        logger: Name of the library's logger.
        errors: The class; records of subclasses are dropped as well.
    """

    def __init__(self, logger: str, errors: type[BaseException]) -> None:
        super().__init__()
        self._logger = logging.getLogger(logger)
        self._errors = errors

    def install(self) -> None:
        """Adds the filter to the logger. Further calls have no effect."""
        self._logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns False for a record that carries such an exception. Called by `logging`."""
        return not (record.exc_info and isinstance(record.exc_info[1], self._errors))


def _filter_by_level(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if _LEVELS.get(method, logging.CRITICAL) < _threshold:
        raise structlog.DropEvent
    return event


def _escape_values(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes what a terminal would interpret or hide.

    That is control characters, escape sequences, and marks of writing direction. Names and headers come from clients;
    each event stays on one line whatever they contain.
    """
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = printable(value, also="\n\t" if key in ("exception", "stack") else "")
    return event


def printable(text: str, also: str = "") -> str:
    """Returns the text with non-printable characters replaced by Python's escapes.

    `also`: further characters to keep.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or character in also else character.encode("unicode_escape").decode()
        for character in text
    )


def _add_logger_name(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event


class LogThrottle:
    """Limits lines of a kind that repeats to one in each period. Pure, bounded."""

    def __init__(self, period: float = THROTTLE_S) -> None:
        self._period = period
        self._last: dict[Hashable, tuple[float, int]] = {}
        """Time of the last line, and the number of events since, by kind."""

    def due(self, kind: Hashable, now: float) -> bool:
        """Returns True if a line of this kind may be written now, and counts it as written."""
        return self.times(kind, now) > 0

    def times(self, kind: Hashable, now: float) -> int:
        """Returns the number of events of this kind since its last line, including this event.

        Counts a line as written. Returns 0 if no line may be written yet.
        """
        last, unlogged = self._last.get(kind, (float("-inf"), 0))
        if now - last < self._period:
            self._last[kind] = (last, unlogged + 1)
            return 0
        self._last.pop(kind, None)
        self._last[kind] = (now, 0)
        if len(self._last) > _MAX_KINDS:
            del self._last[next(iter(self._last))]
        return unlogged + 1
