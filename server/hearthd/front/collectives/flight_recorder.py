"""Flight recorder: the history of the last operations of each group. It is bounded, and dropped with its owner.

Pure, with the clock passed in. A group is identified by (owner, members), as in the `MatchKey` of its operations.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hearth_proto.collectives import PEERED, ROOTED, short_number

if TYPE_CHECKING:
    from hearthd.front.collectives.match import MatchKey

OPERATIONS = 64
"""Maximum number of operations kept for each group."""
GROUPS = 32
"""Maximum number of groups kept for each owner; the least recently used one is evicted."""
LINES = 8
"""Maximum number of lines added to an error."""
_DESCRIBED = 6
"""Maximum number of operations of a batch that are described."""
_ERROR = 300
"""Maximum length of a stored reason in characters."""
_LINE = 200
"""Maximum length of a line in characters. Errors are sent in trailing metadata, which gRPC limits to 8 KiB."""


@dataclass(slots=True)
class RecordedOperation:
    """An operation in the recorder. Times are Unix times in nanoseconds; 0: not yet."""

    sequence: int
    description: str
    presented: dict[int, int] = field(default_factory=dict)
    """Time of the presentation, by rank."""
    launched: int = 0
    finished: int = 0
    """Time at which the operation ended or failed."""
    error: str = ""

    @property
    def state(self) -> str:
        """The state of the operation: `presented`, `launched`, `done` or `failed`."""
        if self.error:
            return "failed"
        if self.finished:
            return "done"
        return "launched" if self.launched else "presented"


@dataclass
class GroupHistory:
    """The last operations of a group, and the state of its communicator."""

    operations: OrderedDict[int, RecordedOperation] = field(default_factory=OrderedDict)
    """Operations by sequence number, in the order in which they were first presented."""
    state: str = "forming"
    """The state of the group's communicator: `forming`, `ready` or `failed`."""
    detail: str = ""
    """The reason of the last failure."""
    aborts: int = 0
    """Number of communicators that were aborted."""
    _described: Sequence[Mapping[str, Any]] | None = None
    _description: str = ""

    def describe(self, operations: Sequence[Mapping[str, Any]]) -> str:
        """Returns `describe_operations(operations)`, cached for the last argument."""
        if operations != self._described:
            self._described, self._description = operations, describe_operations(operations)
        return self._description

    def lines(self, count: int = LINES) -> list[str]:
        """Returns one line for each of the last `count` operations, oldest first."""
        return [_line(entry) for entry in list(self.operations.values())[-count:]]


class FlightRecorder:
    """The histories of all groups that this front coordinates."""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._histories: dict[str, OrderedDict[tuple[int, ...], GroupHistory]] = {}

    def __len__(self) -> int:
        """Number of owners with a history."""
        return len(self._histories)

    # ---- events ----

    def record_presentation(self, key: MatchKey, rank: int, operations: Sequence[Mapping[str, Any]]) -> None:
        """Notes that a rank has presented an operation. The first call for a group begins its history."""
        histories = self._histories.get(key.owner)
        if histories is None:
            histories = self._histories[key.owner] = OrderedDict()
        history = histories.get(key.members)
        if history is None:
            history = histories[key.members] = GroupHistory()
            if len(histories) > GROUPS:
                histories.popitem(last=False)
        histories.move_to_end(key.members)
        entry = history.operations.get(key.sequence)
        if entry is None:
            entry = history.operations[key.sequence] = RecordedOperation(key.sequence, history.describe(operations))
            if len(history.operations) > OPERATIONS:
                history.operations.popitem(last=False)
        elif not entry.description:  # the first rank presented no operation
            entry.description = describe_operations(operations)
        entry.presented[rank] = self._clock()

    def record_launch(self, key: MatchKey) -> None:
        """Notes that `go` was sent to the ranks. Ignored if the operation is no longer recorded."""
        entry = self._entry(key)
        if entry is not None:
            entry.launched = self._clock()

    def record_completion(self, key: MatchKey) -> None:
        """Notes that the operation has been completed. Ignored if it has ended before."""
        entry = self._entry(key)
        if entry is not None and not entry.finished:
            entry.finished = self._clock()

    def record_failure(self, key: MatchKey, error: str) -> None:
        """Notes that the operation has failed, with the reason. Ignored if it has ended before."""
        entry = self._entry(key)
        if entry is not None and not entry.finished:
            entry.finished, entry.error = self._clock(), error[:_ERROR]

    def record_ready(self, owner: str, members: tuple[int, ...]) -> None:
        """Notes that the group has a communicator."""
        history = self.history(owner, members)
        if history is not None:
            history.state, history.detail = "ready", ""

    def record_abort(self, owner: str, members: tuple[int, ...], reason: str) -> None:
        """Notes that the group's communicator failed."""
        history = self.history(owner, members)
        if history is not None:
            history.state, history.detail = "failed", reason[:_ERROR]
            history.aborts += 1

    def forget(self, owner: str) -> None:
        """Drops the histories of an owner that has ended."""
        self._histories.pop(owner, None)

    # ---- queries ----

    def history(self, owner: str, members: tuple[int, ...]) -> GroupHistory | None:
        """Returns the history of a group; None: it has presented nothing, or its history was evicted."""
        histories = self._histories.get(owner)
        return histories.get(members) if histories is not None else None

    def histories(self, owner: str) -> Iterator[tuple[tuple[int, ...], GroupHistory]]:
        """Yields an owner's groups as pairs of members and history, the most recently used last."""
        yield from self._histories.get(owner, OrderedDict()).items()

    def lines(self, owner: str, members: tuple[int, ...]) -> list[str]:
        """Returns the last operations of a group as text, for an error. Empty: there is no history."""
        history = self.history(owner, members)
        return history.lines() if history is not None else []

    def _entry(self, key: MatchKey) -> RecordedOperation | None:
        history = self.history(key.owner, key.members)
        return None if history is None else history.operations.get(key.sequence)


def describe_operations(operations: Sequence[Mapping[str, Any]]) -> str:
    """Describes operations as text, for example `all_reduce 1024 float32 sum`.

    The operations of a batch are separated by commas. Returns an empty string for an empty batch.
    """
    texts = [_describe(operation) for operation in operations[:_DESCRIBED]]
    more = len(operations) - len(texts)
    return ", ".join([*texts, f"{more} more"] if more else texts)


def _describe(operation: Mapping[str, Any]) -> str:
    kind = str(operation.get("kind"))
    if kind == "barrier":
        return kind
    words = [kind, str(operation.get("count")), str(operation.get("dtype"))]
    if operation.get("reduce"):
        words.append(str(operation["reduce"]))
    if kind in ROOTED:
        words.append(f"root {operation.get('root')}")
    if kind in PEERED:
        words.append(f"{'to' if kind == 'send' else 'from'} {operation.get('peer')}")
    return " ".join(words)[:100]


def _line(entry: RecordedOperation) -> str:
    first = min(entry.presented.values(), default=0)
    ranks = ", ".join(map(str, sorted(entry.presented)))
    description = (
        entry.description if len(entry.description) <= _LINE // 2 else entry.description[: _LINE // 2 - 3] + "..."
    )
    words = [f"{short_number(entry.sequence)} {description or 'nothing'}: {entry.state}, presented by ranks {ranks}"]
    if entry.launched:
        words.append(f"launched after {_format_ms(entry.launched - first)}")
    if entry.finished:
        words.append(f"{'ended' if entry.error else 'finished'} after {_format_ms(entry.finished - first)}")
    line = ", ".join(words) + (f" ({entry.error})" if entry.error else "")
    return line if len(line) <= _LINE else line[: _LINE - 3] + "..."


def _format_ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
