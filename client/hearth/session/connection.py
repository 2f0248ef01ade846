"""A session's work on one device, over any number of consecutive attachments.

When the device process is lost, the attachment ends; the next use attaches to the new generation. The owners of
modules, functions and streams create them again, after comparing the current attachment with the one on which they were
created. Arrays cannot be created again; they compare the `Space` to which their memory belongs.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hearth.errors import BufferLostError, ClosedError, HearthError, InvalidHandleError, closed, combined
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
        """Part of a connection besides its attachment, created at its first use: shared memory, stripes."""

        def close(self) -> None:
            """Ends the part for good."""

        def forked(self) -> None:
            """Abandons the part in the child of a fork: it belongs to the parent. Takes no lock."""

    class Recorder(Protocol):
        """Recorder of a trace of all devices of a session: `hearth.profiling.auto_trace.SessionTraces`."""

        def attached(self, connection: Connection, attachment: Attachment) -> None:
            """Notes that `connection` was attached, for the first time or after a loss.

            Args:
                connection: Connection to the device.
                attachment: New attachment of the connection.
            """

        def pause(self, connection: Connection) -> None:
            """Pauses the recording, because another trace of the device begins.

            A device allows only one trace at a time.

            Args:
                connection: Connection to the device.
            """

        def resume(self, connection: Connection, result: commands_pb2.TraceResult | None) -> None:
            """Notes that the other trace has ended, and records again.

            Args:
                connection: Connection to the device.
                result: Result of the other trace, which is added to the recording; None: it was lost.
            """

        def finish(self) -> None:
            """Finishes the trace before the session closes. Blocks; never raises."""


LEASE_S = 30.0
_RELEASED = ("DEVICE_NOT_FOUND", "SESSION_BARRED")
"""Reasons with which the daemon refuses the device to the session after it has freed what the session had on it."""

T = TypeVar("T")
P = TypeVar("P", bound="Part")


class Connection(ABC):
    """Abstract connection of a session to one device. Subclasses implement `_attach`. Thread-safe."""

    def __init__(
        self, transport: Transport, token: str, ordinal: int, limits: Limits, timeout: float, lease: float = LEASE_S
    ) -> None:
        self.transport = transport
        self.token = token
        self.ordinal = ordinal
        self.limits = limits
        self.timeout = timeout
        self.lease = lease
        """Seconds for which the daemon keeps the session while its connection is broken."""
        self.timing = TIMING
        """Times of the attachments that are made from now on."""
        self.generation = 0
        self.refusal: HearthError | None = None
        """Error that every use raises, once it is set: the connection was closed, or belongs to the parent of a
        fork."""
        self.mint = itertools.count(1).__next__
        # shared by all attachments, because an answer to an earlier one may still arrive
        self._requests = itertools.count(1)
        self.kernel_output = KernelOutput()
        self.durables = DurableBuffers()
        self.ring_sized_copies = 0
        """Number of copies that were large enough for the ring; see `hearth.transfer.plan.should_use_ring`."""
        self.sequence = CollectiveSequence()
        """Numbers of the collective operations that the device has presented in its groups."""
        self.recorder: Recorder | None = None
        """Recorder of the trace that the environment variable HEARTH_TRACE requests; None: no trace."""
        self.parts: dict[Any, Part] = {}
        """The parts that `part` has created, by class."""
        self._attachment: Attachment | None = None
        self._space: Space | None = None
        self._attaching = threading.Lock()
        self._deferred = DeferredErrors()

    # ---- attachments ----

    def attachment(self) -> Attachment:
        """Returns the current attachment, which is created at the first use and again after a loss.

        Raises `ConnectError`, `SessionExpiredError`, `ClosedError`, or `DeviceLostError` if the device does not return
        in time.
        """
        attachment = self._attachment
        if attachment is not None and attachment.alive:
            return attachment
        return self._attach()

    @property
    def current(self) -> Attachment | None:
        """The last attachment, which may have ended; None before the first use."""
        return self._attachment

    @property
    def draining(self) -> bool:
        """True once the daemon has announced, on the current Execute stream, that it will stop."""
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
        """Number of times that the Execute stream of this attachment broke and was resumed."""
        attachment = self._attachment
        execute = attachment.execute if attachment is not None else None
        return execute.resumed if execute is not None else 0

    @property
    def used(self) -> bool:
        """True if there may be work in flight, or an error that has not been reported."""
        return self._attachment is not None or bool(self._deferred)

    @abstractmethod
    def callback_queue(self) -> Callable[[Callable[[], None]], object]:
        """Returns the function that passes a callback on to the thread or event loop that calls it. Does not block.

        Raises:
            ClosedError: The connection is closed.
        """

    @abstractmethod
    def _attach(self) -> Attachment:
        """Attaches to the device. Raises like `attachment`."""

    def _restored(self) -> Attachment:
        """Returns the attachment of the new generation once the durable buffers are restored. Raises like `check`."""
        return self.attachment()  # attaching restores them

    def _use(self, attachment: Attachment) -> None:
        generation = attachment.session.generation
        space = self._space
        if space is None or space.lost or space.released or space.generation != generation:
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
        if error.reason in _RELEASED and self._space is not None:
            self._space.released = True
        if report and attachment.space is not None and not isinstance(error, ClosedError):
            self._deferred.add(error)

    def report_received(self, transfer: int, size: int) -> None:
        """Reports to the daemon that the first `size` bytes of a download have arrived.

        The daemon keeps the bytes until then, in case the stream breaks.

        Args:
            transfer: Number of the transfer.
            size: Number of bytes received so far, from the beginning of the download.
        """
        attachment = self._attachment
        if attachment is not None:
            attachment.report_received(transfer, size)

    def part(self, kind: Callable[[Connection], P]) -> P:
        """Returns the part of class `kind` of this connection, and creates it at its first use.

        The part is closed and forked with the connection.

        Args:
            kind: Class of the part, called with this connection to create it.

        Raises:
            ClosedError: The part would have to be created, and the connection is closed.
        """
        part = self.parts.get(kind)
        if part is None:
            with self._attaching:
                if self.refusal is not None:
                    raise self.refusal.again()
                part = self.parts.get(kind)
                if part is None:
                    part = self.parts[kind] = kind(self)
        return cast("P", part)

    # ---- commands ----

    def submit(self, command: commands_pb2.Command | Plain) -> None:
        """Sends a command one way. A failure is raised by the stream's next sync, read, flush or end of a profile.

        Args:
            command: Command without a request number.
        """
        self.attachment().submit(command)

    def call(self, command: commands_pb2.Command | Plain) -> commands_pb2.Result:
        """Sends a command and waits for its answer.

        Args:
            command: Command without a request number.

        Raises:
            HearthError: The command failed.
        """
        return self.attachment().request(command).wait()

    def request(
        self,
        command: commands_pb2.Command | Plain,
        read: Callable[[commands_pb2.Result], T],
        attachment: Attachment | None = None,
        *,
        reports: bool = False,
    ) -> PendingResult[T]:
        """Sends a command, and returns its pending result, which `read` converts from the answer.

        Args:
            command: Command without a request number.
            read: Converts the answer to the result.
            attachment: Attachment over which the command is sent; None: the current one.
            reports: True if the command reports earlier failures; see `report`.
        """
        if reports:
            return PendingResult(self.reporting(command, attachment=attachment), read)
        return PendingResult((attachment or self.attachment()).request(command), read)

    def report(
        self, command: commands_pb2.Command | Plain, *, attachment: Attachment | None = None, barrier: bool = False
    ) -> commands_pb2.Result:
        """Sends a command that reports earlier failures, and waits for its answer like `call`.

        A loss that is not yet reported is raised first.

        Args:
            command: Command without a request number.
            attachment: Attachment over which the command is sent; None: the current one.
            barrier: True if the command covers all streams; otherwise it covers the stream that it names.
        """
        return self.reporting(command, attachment=attachment, barrier=barrier).wait()

    def reporting(
        self, command: commands_pb2.Command | Plain, *, attachment: Attachment | None = None, barrier: bool = False
    ) -> Reply:
        """Sends a command like `report`, and returns its reply without waiting.

        Args:
            command: Command without a request number.
            attachment: Attachment over which the command is sent; None: the current one.
            barrier: True if the command covers all streams; otherwise it covers the stream that it names.
        """
        self.raise_deferred(None if barrier else command.stream)
        return (attachment or self.attachment()).request(command, reports=True, barrier=barrier)

    def defer(self, error: HearthError, origin: ErrorOrigin | None = None) -> None:
        """Keeps an error that arrived when no thread waited for it. Takes no lock.

        Args:
            error: Error that a later wait raises.
            origin: Copy that failed; None: any wait may raise the error.
        """
        self._deferred.add(error, origin)

    def raise_deferred(self, stream: int | None = None, buffer: int = 0) -> None:
        """Raises, once, a deferred error that concerns this thread, `stream` or `buffer`.

        Args:
            stream: Number of the stream that the caller waits for; None: all; `NO_STREAM`: no particular one.
            buffer: Handle of the buffer that the caller waits for; 0: none.
        """
        if self._deferred:
            error = self._deferred.pop_matching(stream, buffer)
            if error is not None:
                raise error.again()

    def raise_failures(self, error: HearthError | None, stream: int | None = None) -> None:
        """Raises late errors, at the end of a synchronization, together with its own error; returns if there are none.

        If `error` lists no failed commands, such as that of a lost device, the late errors remain for the next wait.

        Args:
            error: Error of the synchronization; None: it succeeded.
            stream: Number of the stream that was synchronized; None: all.
        """
        if self._deferred and (error is None or error.failures):
            late = self._deferred.pop_all(stream)
            if late:
                raise combined(late if error is None else [*late, error])

    def check(self, memory: Memory, subject: object) -> Attachment:
        """Returns the attachment on which `memory` can be used.

        Args:
            memory: Buffer of this connection's device.
            subject: Names the object in error messages.

        Raises:
            BufferLostError: The memory was lost with its device process.
            InvalidHandleError: The memory was freed.
            UnavailableError: The durable memory is being restored, and the event loop must not wait for it.
            HearthError: The connection is closed, or belongs to the parent process of a fork.
        """
        if self.refusal is not None:
            raise self.refusal.again()
        if memory.owner is None:
            raise InvalidHandleError(f"{subject} was freed.", fix="keep the array until its last use.")
        if memory.space.lost and memory not in self.durables:
            raise self._lost(memory, subject)
        attachment = self.attachment()
        if attachment.space is not memory.space and memory in self.durables:
            attachment = self._restored()
        if attachment.space is not memory.space:
            raise self._lost(memory, subject)
        return attachment

    def _lost(self, memory: Memory, subject: object) -> HearthError:
        return BufferLostError(
            f"{subject} was lost with generation {memory.space.generation} of device {self.ordinal}.",
            fix="upload or compute it again; modules and streams remain usable.",
            details={"generation": str(memory.space.generation)},
        )

    # ---- end ----

    def close(self, settle: float) -> None:
        """Sends queued commands, waits for them, and refuses all further use.

        Args:
            settle: Longest wait in seconds.
        """
        refusal = closed()
        attachment = self._attachment
        self.refusal = self.refusal or refusal
        try:
            if attachment is not None and attachment.alive:
                try:
                    attachment.settle(settle)
                finally:
                    attachment.end(refusal)
        finally:
            if self._space is not None:
                self._space.lost = True
            for part in list(self.parts.values()):
                part.close()
            self.kernel_output.deliver()  # last: a callback may raise

    def forked(self) -> None:
        """Refuses all use in the child process of a fork. Takes no lock, because another thread may have held it."""
        self.refusal = ClosedError(
            "this connection belongs to the parent process, from which this process was forked.",
            reason="UNSUPPORTED",
            fix="start the process with multiprocessing's spawn or forkserver method, or connect after the fork.",
        )
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.forked(self.refusal)
        for part in list(self.parts.values()):
            part.forked()
        if self._space is not None:
            self._space.lost = True
            self._space.deferred_frees.on_add = None
