"""The work of one session on one device, over any number of attachments.

When the device's process is lost the attachment ends; the next use attaches again, to the new generation. Modules,
functions and streams are made again by their owners, which compare the attachment that they were made on; arrays cannot
be, and compare the `Space` that their memory belongs to.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hearth.errors import BufferLostError, ClosedError, HearthError, InvalidHandleError
from hearth.session.attachment import closed
from hearth.session.collective_order import CollectiveSequence
from hearth.session.kernel_output import KernelOutput
from hearth.session.late_errors import DeferredErrors
from hearth.session.memory import DurableBuffers, Space
from hearth.session.reply import PendingResult
from hearth.session.timing import TIMING
from hearth_proto.later import commands_pb2

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from hearth.codec.encode import Plain
    from hearth.session.attachment import Attachment
    from hearth.session.late_errors import ErrorOrigin
    from hearth.session.memory import Memory
    from hearth.session.reply import Reply
    from hearth.session.send_queue import Limits
    from hearth.transport.base import Transport

    class Part(Protocol):
        """A part of a connection beside its attachment, from its first use on: shared memory, stripes."""

        def close(self) -> None:
            """Ends it, for good."""

        def forked(self) -> None:
            """Abandons the part in the child of a fork: it belongs to the parent. Takes no lock."""

    class Recorder(Protocol):
        """Traces all devices of a session: `hearth.profiling.auto_trace.SessionTraces`."""

        def attached(self, connection: Connection, attachment: Attachment) -> None:
            """The device was attached to, for the first time or after a loss."""

        def pause(self, connection: Connection) -> None:
            """Pauses the recording: another trace of the device begins, which allows none beside it."""

        def resume(self, connection: Connection, result: commands_pb2.TraceResult | None) -> None:
            """Notes that the trace has ended, with `result` if any."""

        def finish(self) -> None:
            """The session is about to close. Waits; never raises."""


LEASE_S = 30.0

T = TypeVar("T")
P = TypeVar("P", bound="Part")


class Connection(ABC):
    """Abstract connection to one device. A subclass attaches. Safe from any thread."""

    def __init__(
        self, transport: Transport, token: str, ordinal: int, limits: Limits, timeout: float, lease: float = LEASE_S
    ) -> None:
        self.transport = transport
        self.token = token
        self.ordinal = ordinal
        self.limits = limits
        self.timeout = timeout
        self.lease = lease
        """Seconds that the session may be away, its connection broken, before the daemon gives it up."""
        self.timing = TIMING
        """Times of the attachments that are made from now on."""
        self.generation = 0
        self.refusal: HearthError | None = None
        """Once set, every use raises it: closed, or forked."""
        self.mint = itertools.count(1).__next__
        self._requests = itertools.count(1)  # of all attachments: an answer to an earlier one's may come late
        self.kernel_output = KernelOutput()
        self.durables = DurableBuffers()
        self.middling_copies = 0
        """Number of copies that were large enough for the ring; see `hearth.transfer.plan.worth_a_ring`."""
        self.sequence = CollectiveSequence()
        """Numbers of the operations that the device has presented in groups."""
        self.recorder: Recorder | None = None
        """HEARTH_TRACE's."""
        self.parts: dict[Any, Part] = {}
        """The parts that `part` has made, by class."""
        self._attachment: Attachment | None = None
        self._space: Space | None = None
        self._attaching = threading.Lock()
        self._deferred = DeferredErrors()

    # ---- attachments ----

    def attachment(self) -> Attachment:
        """The current attachment, made at the first use and after a loss.

        Raises `ConnectError`, `SessionExpiredError`, `ClosedError`, or `DeviceLostError` where the device does not come
        back in time.
        """
        attachment = self._attachment
        if attachment is not None and attachment.alive:
            return attachment
        return self._attach()

    @property
    def draining(self) -> bool:
        """True once the daemon has announced, on the present Execute stream, that it will stop."""
        attachment = self._attachment
        return attachment is not None and attachment.session.draining

    @property
    def attached(self) -> bool:
        """True while an Execute stream is open."""
        attachment = self._attachment
        return attachment is not None and attachment.alive

    @property
    def late_errors(self) -> int:
        """Number of failures that no wait has raised yet."""
        return len(self._deferred)

    @property
    def outages(self) -> int:
        """Number of times that the Execute stream broke and was resumed, in this attachment."""
        attachment = self._attachment
        execute = attachment.execute if attachment is not None else None
        return execute.resumed if execute is not None else 0

    @property
    def used(self) -> bool:
        """True if there may be work under way, or an error that has not been reported."""
        return self._attachment is not None or bool(self._deferred)

    @abstractmethod
    def _attach(self) -> Attachment:
        """Attaches. Raises as `attachment` does."""

    def _take_up(self, attachment: Attachment) -> None:
        generation = attachment.session.generation
        space = self._space
        if space is None or space.lost or space.generation != generation:
            if space is not None:
                space.lost = True
            self._space = space = Space(generation)
            self.durables.move(attachment.session.durable, space)
        self.generation = generation
        attachment.session.reverts = self.durables.any
        attachment.adopt(space)
        self._attachment = attachment
        if self.recorder is not None:
            self.recorder.attached(self, attachment)

    def _ended(self, attachment: Attachment, error: HearthError, report: bool) -> None:
        if attachment.session.device_lost and attachment.space is not None:
            attachment.space.lost = True
        if report and attachment.space is not None and not isinstance(error, ClosedError):
            self._deferred.keep(error)

    def arrived(self, transfer: int, size: int) -> None:
        """Reports to the daemon, which keeps the bytes for a stream that breaks, that `size` bytes of a download have
        come.
        """
        attachment = self._attachment
        if attachment is not None:
            attachment.arrived(transfer, size)

    def part(self, kind: Callable[[Connection], P]) -> P:
        """Returns the `kind` of this connection, made at its first use. It is closed, and forked, with the connection.

        Raises `ClosedError` where it would have to be made and the connection is closed.
        """
        found = self.parts.get(kind)
        if found is None:
            with self._attaching:
                if self.refusal is not None:
                    raise self.refusal.again()
                found = self.parts.get(kind)
                if found is None:
                    found = self.parts[kind] = kind(self)
        return cast("P", found)

    # ---- commands ----

    def submit(self, command: commands_pb2.Command | Plain) -> None:
        """Sends a command one way; a failure surfaces at the stream's next sync, read, flush or end of a profile."""
        self.attachment().submit(command)

    def call(
        self,
        command: commands_pb2.Command | Plain,
        *,
        attachment: Attachment | None = None,
        timeout: float | None = None,
    ) -> commands_pb2.Result:
        """Sends a command and waits for its answer. Raises its error, or `TimeoutError` after `timeout` seconds."""
        return (attachment or self.attachment()).request(command).wait(timeout)

    def asking(
        self,
        command: commands_pb2.Command | Plain,
        read: Callable[[commands_pb2.Result], T],
        attachment: Attachment | None = None,
        *,
        reports: bool = False,
    ) -> PendingResult[T]:
        """Sends a command whose answer `read` converts. `reports`: see `report`."""
        if reports:
            return PendingResult(self.reporting(command, attachment=attachment), read)
        return PendingResult((attachment or self.attachment()).request(command), read)

    def report(
        self,
        command: commands_pb2.Command | Plain,
        *,
        attachment: Attachment | None = None,
        barrier: bool = False,
        timeout: float | None = None,
    ) -> commands_pb2.Result:
        """Like `call`, for commands that report earlier failures: a loss that is not yet reported is raised first."""
        return self.reporting(command, attachment=attachment, barrier=barrier).wait(timeout)

    def reporting(
        self, command: commands_pb2.Command | Plain, *, attachment: Attachment | None = None, barrier: bool = False
    ) -> Reply:
        """Like `report`, without waiting."""
        self.raise_deferred(None if barrier else command.stream)
        return (attachment or self.attachment()).request(command, reports=True, barrier=barrier)

    def defer(self, error: HearthError, origin: ErrorOrigin | None = None) -> None:
        """Keeps an error that arrived when no thread waited for it. Takes no lock."""
        self._deferred.keep(error, origin)

    def raise_deferred(self, stream: int | None = None, buffer: int = 0) -> None:
        """Raises, once, a deferred error that concerns this thread, `stream` (None: all) or `buffer`."""
        if self._deferred:
            error = self._deferred.take(stream, buffer)
            if error is not None:
                raise error.again()

    def check(self, memory: Memory, what: object) -> Attachment:
        """Returns the attachment on which `memory` can be used. Raises the reason why it cannot, naming it `what`."""
        if self.refusal is not None:
            raise self.refusal.again()
        if memory.owner is None:
            raise InvalidHandleError(
                f"{what} was freed.", reason="INVALID_HANDLE", fix="keep the array until its last use."
            )
        if memory.space.lost and memory not in self.durables:
            raise self._lost(memory, what)
        attachment = self.attachment()  # to a new generation, it brings back what is durable
        if attachment.space is not memory.space:
            raise self._lost(memory, what)
        return attachment

    def _lost(self, memory: Memory, what: object) -> HearthError:
        return BufferLostError(
            f"{what} was lost with generation {memory.space.generation} of device {self.ordinal}.",
            reason="BUFFER_LOST",
            fix="upload or compute it again; modules and streams carry on by themselves.",
            details={"generation": str(memory.space.generation)},
        )

    # ---- end ----

    def close(self, settle: float) -> None:
        """Sends what is queued, `settle` seconds at most, and refuses all further use."""
        refusal = closed()
        attachment = self._attachment
        self.refusal = self.refusal or refusal
        if attachment is not None and attachment.alive:
            attachment.settle(settle)
            attachment.end(refusal)
        for part in list(self.parts.values()):
            part.close()
        self.kernel_output.deliver()
        if self._space is not None:
            self._space.lost = True

    def forked(self) -> None:
        """Refuses all use in the child of a fork. Takes no lock, because another thread may have held it."""
        self.refusal = ClosedError(
            "this connection belongs to the process that this one was forked from.",
            reason="UNSUPPORTED",
            fix="start it with multiprocessing's spawn or forkserver method, or connect after the fork.",
        )
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.forked()
        for part in list(self.parts.values()):
            part.forked()
        if self._space is not None:
            self._space.lost = True
            self._space.deferred_frees.nudge = None
