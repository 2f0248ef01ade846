"""Abstract prepared launches: a list of launches that is checked once, and then run by one small command.

Inside ``with gpu.prepared() as p:`` launches are collected instead of sent; launches on other streams, and other work
on the current stream, are refused. The memory and modules that a list uses exist as long as the list, even if the
program has dropped the arrays and modules.

`BasePrepared` has everything that `hearth.Prepared` and `hearth.aio.Prepared` have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex

from hearth.errors import ArgumentError
from hearth.graphs.program import Program
from hearth.graphs.recorders import PreparedRecorder, one_by_one
from hearth_proto.v1 import commands_pb2

if TYPE_CHECKING:
    from types import TracebackType

    from hearth.base_stream import BaseStream
    from hearth.launch_recorder import LaunchCall
    from hearth.session.connection import Connection
    from hearth.session.memory import Kind
    from hearth.session.reply import PendingResult


class BasePrepared(Program):
    """Abstract prepared launches: the list, and the request that checks it."""

    _kind: Kind = "prepared"
    _noun = "the prepared list"

    def __init__(self, connection: Connection, stream_type: type[BaseStream]) -> None:
        super().__init__(connection, stream_type)
        self._calls: tuple[LaunchCall, ...] = ()
        self._collecting: BaseStream | None = None
        """The stream that replaces the current one inside the block."""
        self._recorder: PreparedRecorder | None = None

    def _begin(self) -> None:
        self._ready_to_enter()
        self._collecting = self._stream_type(self._connection, default=True)
        self._recorder = self._collecting._recorder = PreparedRecorder(self._connection)
        self._handle = self._connection.mint()
        self._collecting.__enter__()

    def _end(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> PendingResult[None] | None:
        stream, recorder = self._collecting, self._recorder
        self._collecting = self._recorder = None
        assert stream is not None and recorder is not None, "left without having been entered"
        stream.__exit__(kind, error, trace)
        recorder.end()
        if error is not None:
            self._closed = True
            return None
        attachment = recorder.attachment
        command = commands_pb2.Command()
        command.prepare.prepared = self._handle
        command.prepare.launches = b"".join(recorder.packed)
        self._space = attachment.space

        def read(_: commands_pb2.Result) -> None:
            self._calls = tuple(one_by_one(recorder.calls))

        with self._or_closed():
            return self._connection.request(command, read, attachment)

    def launch(self, n: SupportsIndex = 1, stream: BaseStream | None = None) -> None:
        """Runs all launches in order. Does not block. An empty list runs nothing.

        Args:
            n: Number of rounds in a row, from 1.
            stream: Stream to run on; None: the current one. If a graph is being recorded from the stream, the launches
                are recorded.

        Raises:
            ArgumentError: `n` is out of range, the list has not been collected, or `stream` belongs to another device
                or session.
            InvalidHandleError: The list is closed, or was lost with its device process.
            LaunchError: Launches are being collected in another ``gpu.prepared()`` block of this thread, or the stream
                is not in the capture that this thread has begun.
        """
        self._launch(n, stream)

    def _launch_command(self, stream: int, timeout: float | None) -> Callable[[int], bytes]:
        prepared = self._handle

        def command(n: int) -> bytes:
            launch = commands_pb2.LaunchPrepared(prepared=prepared, count=n)
            return commands_pb2.Command(stream=stream, launch_prepared=launch).SerializeToString()

        return command

    def _calls_to_record(self) -> tuple[LaunchCall, ...]:
        return self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def __bool__(self) -> bool:
        return True  # a list is true even if it is empty

    def __repr__(self) -> str:
        state = ", being collected" if self._recorder is not None else self._state()
        return f"<hearth.Prepared of {len(self)} launches on device {self._connection.ordinal}{state}>"


def launch_all(launches: Iterable[Sequence[Any]]) -> None:
    """Calls each kernel of `launches` with its arguments; see `Device.prepare`.

    Raises `ArgumentError` for a malformed entry, and if `launches` is not iterable.
    """
    try:
        entries = iter(launches)
    except TypeError:
        raise ArgumentError(
            f"launches is {launches!r}, which is not iterable.",
            fix="pass a list of launches, each (kernel, grid, block, args).",
        ) from None
    for index, launch in enumerate(entries):
        if not isinstance(launch, tuple | list) or not 4 <= len(launch) <= 5:
            raise ArgumentError(
                f"launch {index} is {launch!r}, which does not describe a launch.",
                fix="pass (kernel, grid, block, args), optionally followed by shared_mem.",
            )
        kernel, *arguments = launch
        kernel(*arguments)
