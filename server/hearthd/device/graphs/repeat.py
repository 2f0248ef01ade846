"""Repetition: launches a graph, or a list of prepared launches, many times with one command.

The driver blocks a thread that submits too much to a stream, so rounds are submitted in slices for which the track has
room. Until the track has more room, the operation waits like any other, and other sessions are served.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.launch.holdings import Holdings
from hearthd.device.launch.watchdog import Watchdog
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_pool import WINDOW

MAX_PER_ITERATION = 2 * WINDOW
"""Most launches of one session in one iteration of the loop; the driver handles that many in well below a
millisecond."""


MAX_NAMED = 16
"""Most kernels that are named if the device is lost while they run."""


class LaunchProgram(ABC):
    """Launches that run as a unit; the base class of `GraphEntry` and `PreparedEntry`."""

    __slots__ = ("error", "handle", "holdings", "unsettled", "usage")

    max_per_iteration = MAX_PER_ITERATION
    """Most commands of the program that are submitted in one iteration of the loop."""

    def __init__(self, handle: int, holdings: Holdings) -> None:
        self.handle = handle
        self.holdings = holdings
        self.usage = Usage()
        """Orders the program's launches on several streams, even if they share no buffer."""
        self.error: Refusal | None = None
        """Reason why the handle has no program to launch; None if it has."""
        self.unsettled = 0
        """Number of pending commands that determine which objects the program uses."""

    def check(self) -> None:
        """Raises Refusal if the program cannot be launched."""
        if self.error is not None:
            raise self.error

    @property
    @abstractmethod
    def empty(self) -> bool:
        """True if a launch has no effect."""

    @property
    @abstractmethod
    def cost(self) -> int:
        """Number of commands of a track's budget that one round takes."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of the kernels, at most `MAX_NAMED`; the report of a lost device lists them as running."""


class Rounds:
    """Launches a program `count` times on a stream. `issue(n)` submits the next n rounds to the driver.

    `limit` returns the name of the next round and its time limit in seconds (0: no limit); None if there are no limits.
    """

    def __init__(
        self,
        device: DeviceContext,
        watchdog: Watchdog,
        stream: LogicalStream,
        program: LaunchProgram,
        count: int,
        issue: Callable[[int], None],
        *,
        limit: Callable[[], tuple[str, float]] | None = None,
    ) -> None:
        self._device = device
        self._watchdog = watchdog
        self._stream = stream
        self._program = program
        self._remaining = count
        self._issue = issue
        self._limit = limit

    def run(self) -> bool:
        """Submits as many rounds as the track has room for. Returns True if all rounds are submitted."""
        program = self._program
        program.check()
        if program.empty:
            return True
        device, track, summary = self._device, self._stream.track, program.holdings.summary
        tracks, cost, names = device.tracks, program.cost, program.names
        quota = min(program.max_per_iteration, track.room)
        # The order of the conditions matters, because checking `closed` requests a time slice.
        while self._remaining and not track.closed and quota > 0:
            count = min(self._remaining, max(1, min(track.budget, quota) // cost)) if self._limit is None else 1
            writes = (program.usage, *summary.writes)
            position = tracks.claim_position(track, writes, summary.reads, is_launch=bool(names))
            device.begin(self._stream)
            track.launched.extend((position, name, self._stream.session) for name in names)
            self._submit(count)
            tracks.charge(track, count * cost - 1)
            if summary.prints is not None:
                device.output.launched(summary.prints, track)
            for buffer in summary.renewed:
                buffer.failure = None
            self._remaining -= count
            quota -= count * cost
        if self._remaining and quota <= 0 and not track.closed:
            device.retry_soon()  # otherwise the device would be idle until completion of these rounds is noticed
        return not self._remaining

    def _submit(self, count: int) -> None:
        name, seconds = self._limit() if self._limit is not None else ("", 0.0)
        if seconds:
            with self._watchdog.limit(self._stream.track, name, seconds, self._stream.session):
                self._issue(count)
        else:
            self._issue(count)


class ProgramLaunch(Operation):
    """The launch of a program. The objects that the launch needs are known for certain only when the launch runs."""

    __slots__ = ("_program",)

    def __init__(self, origin: Origin, program: LaunchProgram, run: Callable[[], bool]) -> None:
        summary = program.holdings.summary
        super().__init__(
            origin,
            run,
            writes=(origin.stream, *summary.written),
            reads=(program, *summary.read),
            # Until the used objects are known, the launch must be ordered against every command.
            barrier=bool(program.unsettled),
        )
        self._program = program
        self.after = origin.reply

    def step(self) -> bool:
        """Tries to run, as `Operation.step`, with the objects that the program uses now."""
        if self.origin.capture is None:
            summary = self._program.holdings.summary
            self.needs, self.spoils = summary.needed, summary.written
        return super().step()


def check_count(count: int, program: str) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if `count` is 0."""
    if not count:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"{program} is to be launched 0 times; the minimum is 1",
            fix="skip the command when there is nothing to launch",
            details={"count": count},
            fields=["count"],
        )
