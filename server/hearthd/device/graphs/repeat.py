"""Repetition: launches a graph, or a list of prepared launches, many times with one command.

The driver blocks a thread that submits too much to a stream, so rounds are submitted in slices for which the track has
room. Until there is more room, the operation waits like any other, and other sessions are served.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.holdings import Holdings
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import WINDOW

TURN = 2 * WINDOW
"""Limit of one session in a turn of the loop, in launches: well below a millisecond's work of the driver."""


NAMED = 16
"""Kernels that are named when the device is lost while they run."""


class LaunchProgram(ABC):
    """Launches that run as a whole: `GraphEntry`, `PreparedEntry`."""

    __slots__ = ("error", "handle", "holdings", "unsettled", "usage")

    turn = TURN
    """Limit of what one turn of the loop submits of the program, in commands."""

    def __init__(self, handle: int, holdings: Holdings) -> None:
        self.handle = handle
        self.holdings = holdings
        self.usage = Usage()
        """Orders its launches on several streams, also where they share no buffer."""
        self.error: Refusal | None = None
        """Reason why there is no program to launch under the handle."""
        self.unsettled = 0
        """Commands under way that decide what it uses."""

    def check(self) -> None:
        """Raises what stands against its use."""
        if self.error is not None:
            raise self.error

    @property
    @abstractmethod
    def empty(self) -> bool:
        """True where a launch has no effect."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Room that one round takes of a track, in commands."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of the kernels, `NAMED` at most: the report of a lost device lists them as running."""


class Rounds:
    """A program `left` times on a stream; `issue(n)` gives the driver the next n rounds.

    `limit`, where there are time limits: the name of what comes next, and how many seconds it may take (0: any).
    """

    def __init__(
        self,
        device: DeviceContext,
        watchdog: Watchdog,
        stream: LogicalStream,
        program: LaunchProgram,
        left: int,
        issue: Callable[[int], None],
        *,
        limit: Callable[[], tuple[str, float]] | None = None,
    ) -> None:
        self._device = device
        self._watchdog = watchdog
        self._stream = stream
        self._program = program
        self._left = left
        self._issue = issue
        self._limit = limit

    def run(self) -> bool:
        """Gives the track what it has room for; whether that was all."""
        program = self._program
        program.check()
        if program.empty:
            return True
        device, track, summary = self._device, self._stream.track, program.holdings.summary
        tracks, cost, names = device.tracks, program.cost, program.names
        turn = min(program.turn, track.room)
        while self._left and not track.closed and turn > 0:  # in this order: the check of `closed` queues it for a turn
            count = min(self._left, max(1, min(track.budget, turn) // cost)) if self._limit is None else 1
            tracks.before(track, (program.usage, *summary.writes), summary.reads)
            device.begin(self._stream)
            position = tracks.ordering.position(track.index)
            track.launched.extend((position, name, self._stream.session) for name in names)
            self._give(count)
            tracks.charge(track, count * cost - 1)
            if summary.prints is not None:
                device.output.launched(summary.prints, track)
            for buffer in summary.renewed:
                buffer.failure = None
            self._left -= count
            turn -= count * cost
        if self._left and turn <= 0 and not track.closed:
            device.again()  # otherwise the device would be idle until the end of these is noticed
        return not self._left

    def _give(self, count: int) -> None:
        name, seconds = self._limit() if self._limit is not None else ("", 0.0)
        if seconds:
            with self._watchdog.limit(self._stream.track, name, seconds, self._stream.session):
                self._issue(count)
        else:
            self._issue(count)


class ProgramLaunch(Operation):
    """The launch of a program. What it needs is known for certain only when its turn has come."""

    __slots__ = ("_program",)

    def __init__(self, origin: Origin, program: LaunchProgram, run: Callable[[], bool]) -> None:
        summary = program.holdings.summary
        super().__init__(
            origin,
            run,
            writes=(origin.stream, *summary.written),
            reads=(program, *summary.read),
            # While it is not known what the program uses, nothing can be said to be out of its way.
            barrier=bool(program.unsettled),
        )
        self._program = program
        self.after = origin.reply

    def step(self) -> bool:
        if self.origin.capture is None:
            summary = self._program.holdings.summary
            self.needs, self.spoils = summary.needed, summary.written
        return super().step()


def check_count(count: int, what: str) -> None:
    """Raises for a launch of nothing."""
    if not count:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{what} is to be launched 0 times; once is the least",
            fix="skip the command when there is nothing to launch",
            details={"count": count},
        )
