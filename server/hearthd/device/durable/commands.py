"""Durable buffers: the commands SetDurable and Checkpoint, and the messages to and from the front's store of copies."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import partial
from typing import Any

from hearth_proto.frames import Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.server import DeviceFault
from hearthd.device.context import DeviceContext
from hearthd.device.durable.buffers import DurableBuffer, not_restored
from hearthd.device.durable.resources import DurableResources
from hearthd.device.durable.restore import restore
from hearthd.device.durable.snapshot import Snapshot
from hearthd.device.durable.snapshot_policy import SnapshotAreas
from hearthd.device.ipc.published import ATTACHED
from hearthd.device.memory.commands import MemoryCommands
from hearthd.device.operation import Operation, Origin, ReplySink, internal_error, submit
from hearthd.device.platform.fd_passing import DescriptorSocket
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession

GENERATIONS = 32
"""Number of low bits in the key of a copy; the process's generation is above them, so that keys of two processes never
collide."""


class SnapshotCommands:
    """Executes the commands of durable buffers. Device-handle thread only."""

    def __init__(
        self,
        device: DeviceContext,
        memory: MemoryCommands,
        replies: ReplySink,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._device = device
        self._replies = replies
        self._resources = DurableResources(device, memory.reservations, post)
        self.answered = self._resources.answered
        """Handles the front's answers to requests."""
        self._keys = itertools.count((device.spec.generation << GENERATIONS) + 1)

    def listen(self, descriptors: DescriptorSocket) -> None:
        """Registers the handler for the sessions' files."""
        descriptors.register("snapshot", self._resources.session_files.received)

    # ---- commands ----

    def set_durable(self, origin: Origin, command: commands_pb2.SetDurable) -> Operation | None:
        """Makes buffers durable and takes their first copies at this point of the stream, or ends their durability."""
        session = origin.session
        buffers = list({handle: session.buffers.find(handle) for handle in command.buffers}.values())
        if not buffers:
            raise Refusal(Reason.INVALID_ARGUMENT, "SetDurable names no buffer", fix="name one or more")
        if not command.durable:
            return self._end(origin, buffers)
        for buffer in buffers:
            self._check(buffer)
        new_durables: list[DurableBuffer] = []
        for buffer in buffers:
            if buffer.durable is None or buffer.durable.ended or buffer.durable.refusal is not None:
                new_durables.append(DurableBuffer(self._device.outbox, next(self._keys), session, buffer))
        if new_durables:
            reservations = [[durable.key, durable.buffer.handle, durable.buffer.size] for durable in new_durables]
            self._resources.request(session, {"reserve": reservations}, partial(self._granted, new_durables))
        self._snapshot(origin, [buffer.durable for buffer in buffers])
        return None

    def checkpoint(self, origin: Origin, command: commands_pb2.Checkpoint) -> None:
        """Takes new copies of the named durable buffers, or of all the session's durable buffers if none is named."""
        session = origin.session
        durables: list[DurableBuffer] = []
        for handle in dict.fromkeys(command.buffers):
            durable = session.buffers.find(handle).durable
            if durable is None or durable.ended:
                raise Refusal(
                    Reason.INVALID_ARGUMENT,
                    f"checkpoint of buffer {handle}, which is not durable",
                    fix="make it durable first: gpu.durable(x), or SetDurable",
                    details={"buffer": handle},
                )
            durables.append(durable)
        if not command.buffers:
            live = session.buffers.get
            durables = [
                buffer.durable
                for handle, buffer in session.durable.items()
                if live(handle) is buffer and not buffer.durable.ended and buffer.durable.refusal is None
            ]
        if durables:
            self._snapshot(origin, durables)
        else:
            origin.reply()

    def _check(self, buffer: Buffer) -> None:
        """Raises Refusal for a buffer that could not be restored."""
        if buffer.read_only is ATTACHED:
            problem = f"{ATTACHED.why}; only its publisher can make it durable"
            fix = "attach it again after a loss, or make a copy of it durable"
        elif buffer.has_pointers:
            problem = "contains addresses, which are not those of a later device process"
            fix = "make its targets durable, and make the array of pointers again after a loss"
        elif buffer.module is not None:
            problem = "is a module's variable, which is created again with its module"
            fix = "copy it into an array, and make that durable"
        else:
            return
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"buffer {buffer.handle} {problem}",
            fix=fix,
            details={"buffer": buffer.handle},
        )

    def _snapshot(self, origin: Origin, durables: list[DurableBuffer]) -> None:
        session = origin.session
        copy_origin = Origin(
            origin.replies,
            session,
            origin.stream,
            origin.name,
            batch=origin.batch,
            index=origin.index,
            request=origin.request,
            call=origin.call,
        )
        copy_origin.batch = (
            None  # for its batch, the command counts as executed when its position in the stream is recorded
        )
        if origin.record is not None:
            origin.record.drop()
            origin.record = None
        snapshot = Snapshot(self._resources, copy_origin, durables)
        session.snapshots[snapshot] = None
        for operation in snapshot.operations(origin):
            submit(operation)

    def _end(self, origin: Origin, buffers: list[Buffer]) -> Operation:
        durables = [buffer.durable for buffer in buffers if buffer.durable is not None]
        for buffer in buffers:
            buffer.durable = None
            origin.session.durable.pop(buffer.handle, None)

        def end(_refusal: Refusal | None = None) -> None:
            for durable in durables:
                durable.end()

        def run() -> bool:
            end()
            origin.reply()
            return True

        # Runs after earlier snapshots that have not begun.
        operation = Operation(origin, run, writes=(origin.stream, *buffers))
        operation.on_failure = end
        return operation

    # ---- the front ----

    def restore(self, session: DeviceSession, frame: Frame) -> None:
        """Restores the buffers that the session had in a lost process.

        Answers the front with RESTORED when all of them are restored or have failed.
        """
        copies = json.loads(frame.payload)["copies"]
        try:
            self._restore(session, frame.id, copies)
        except DeviceFault:
            raise
        except Exception as error:
            # The front sends the same copies to each later process, so the error must not end the process.
            self._restore_failed(session, frame.id, copies, error)

    def _restore(self, session: DeviceSession, call: int, copies: list[list[Any]]) -> None:
        restored = [
            (self._durable(session, key, handle, size), SnapshotAreas(offset, span, area))
            for key, handle, size, offset, span, area in copies
        ]
        origin = Origin(self._replies, session, session.streams.items[0], "restore")

        def done(failed: dict[int, str]) -> None:
            self._device.telemetry.restored_buffers += len(copies) - len(failed)
            self._answer_restored(session, call, failed)

        restore(self._resources, origin, restored, done)

    def _restore_failed(self, session: DeviceSession, call: int, copies: list[list[Any]], error: Exception) -> None:
        """Marks all buffers as lost, and answers that none is restored."""
        refusal = not_restored(error if isinstance(error, Refusal) else internal_error("restore", error))
        for _, handle, size, *_ in copies:
            buffer = session.buffers.items.setdefault(handle, Buffer(handle, size))
            buffer.lost = refusal
            if buffer.durable is not None:
                buffer.durable.end()
        self._answer_restored(session, call, dict.fromkeys((key for key, *_ in copies), refusal.message))

    def _answer_restored(self, session: DeviceSession, call: int, failed: dict[int, str]) -> None:
        payload = json.dumps({"failed": list(failed.items())}).encode()
        self._device.outbox.put(Kind.RESTORED, payload, channel=session.channel, id=call)

    def _durable(self, session: DeviceSession, key: int, handle: int, size: int) -> DurableBuffer:
        table = session.buffers
        # The limit was applied when the buffer was created, and may be lower now.
        table.bound = max(table.bound, len(table) + 1)
        return DurableBuffer(self._device.outbox, key, session, table.add(handle, Buffer(handle, size)))

    def _granted(self, durables: list[DurableBuffer], body: dict[str, Any], refusal: Refusal | None) -> None:
        """Sets the areas of these buffers, or the reason why the front granted none."""
        if refusal is not None:
            for durable in durables:
                durable.refusal = refusal
        else:
            for durable, (offset, span) in zip(durables, body["places"], strict=True):
                durable.grant(SnapshotAreas(offset, span))
        self._device.kick(durables[0].session)

    # ---- the end of a session ----

    def close(self, session: DeviceSession) -> None:
        """Abandons the session's snapshots, and closes its file when the writes under way have ended."""
        refusal = Refusal(Reason.SESSION_EXPIRED, "the session was closed before its snapshot was complete")
        for snapshot in list(session.snapshots):
            if snapshot.track is not None:
                # The session's work has ended only when the last of these copies is done.
                session.touch(snapshot.track, self._device.tracks.ordering.position(snapshot.track.index))
            snapshot.cancel(refusal)
        self._resources.close(session)
