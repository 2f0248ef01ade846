"""Logging: one line an event, JSON or console, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Hashable, MutableMapping
from typing import Any

from hearthd.shared import plain_logs  # noqa: F401, isort: skip - before structlog

import structlog

_LEVELS = {name.lower(): number for name, number in logging.getLevelNamesMapping().items()}
_processors: list[Any] = []
"""Processors of every logger, also of existing ones: changed in place."""
_threshold = logging.INFO

THROTTLE_S = 60.0
"""Seconds between two lines of one kind, by default."""
_MOST_KINDS = 1024
"""Kinds whose last lines are remembered."""


def configure(level: str = "info", format: str = "auto") -> None:
    """Sets structlog up for the whole process; libraries that use `logging` (from warnings up) come out the same. May
    be called again: every logger follows the last call."""
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
        final = [structlog.processors.format_exc_info, _for_terminals, renderer]
    _processors[:] = [_from_level_up, *shared, *final]
    structlog.configure(
        processors=_processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, _name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *final],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(_threshold, logging.WARNING))


class WithoutErrors(logging.Filter):
    """Drops a library's records of exceptions of one class, which strangers cause: they could fill the log with them.

    Args:
        logger: name of the library's logger.
        errors: the class; records of subclasses are dropped as well.
    """

    def __init__(self, logger: str, errors: type[BaseException]) -> None:
        super().__init__()
        self._logger = logging.getLogger(logger)
        self._errors = errors

    def install(self) -> None:
        """Adds the filter to the logger; once, however often it is called."""
        self._logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], self._errors))


def _from_level_up(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if _LEVELS.get(method, logging.CRITICAL) < _threshold:
        raise structlog.DropEvent
    return event


def _for_terminals(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes what a terminal would obey or hide: control characters, escape sequences, marks of writing direction.
    Names and headers come from strangers; a line of the log is one line, whatever is in it."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = printable(value, also="\n\t" if key in ("exception", "stack") else "")
    return event


def printable(text: str, also: str = "") -> str:
    """The text with escapes as Python writes them in place of what is not printable; `also`: characters that stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in also else each.encode("unicode_escape").decode() for each in text
    )


def _name(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    record = event.get("_record")
    if record is not None:
        event["logger"] = record.name
    return event


class LogThrottle:
    """Decides when a line of a kind that repeats is logged again: once a period. Pure, bounded."""

    def __init__(self, period: float = THROTTLE_S) -> None:
        self._period = period
        self._last: dict[Hashable, tuple[float, int]] = {}
        """Time of the last line of each kind, and the number of events since."""

    def due(self, kind: Hashable, now: float) -> bool:
        """Returns True if a line of this kind is due, and counts it as written."""
        return self.times(kind, now) > 0

    def times(self, kind: Hashable, now: float) -> int:
        """Returns the events of this kind since its last line, this one included, and counts a line as written. 0: no
        line is due."""
        last, unlogged = self._last.get(kind, (float("-inf"), 0))
        if now - last < self._period:
            self._last[kind] = (last, unlogged + 1)
            return 0
        self._last.pop(kind, None)
        self._last[kind] = (now, 0)
        if len(self._last) > _MOST_KINDS:
            del self._last[next(iter(self._last))]
        return unlogged + 1
