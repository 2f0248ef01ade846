"""Collectives: presented to the front, which matches the ranks; launched on the communicator's track when it says go.

The front gives every rank the same order of operations, so no two ranks can wait for each other's. Joining and aborting
a communicator block, and are done on helper threads.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.message import DecodeError

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2, status_pb2
from hearthd.device.context import Device
from hearthd.device.operation import Operation, Origin
from hearthd.device.server import Communicator, Exchange
from hearthd.device.tables import Buffer, Session
from hearthd.device.tracks import Track

OPS = {
    commands_pb2.REDUCE_OP_SUM: "sum",
    commands_pb2.REDUCE_OP_MEAN: "mean",
    commands_pb2.REDUCE_OP_MIN: "min",
    commands_pb2.REDUCE_OP_MAX: "max",
    commands_pb2.REDUCE_OP_PROD: "prod",
}

ITEM_SIZES = {
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip

CHECK_S = 0.05
"""How often communicators are asked whether they have failed."""

Key = tuple[int, tuple[int, ...], int]
"""channel, devices, sequence"""


class Pending:
    """An operation of this rank that the front has been told of."""

    def __init__(self) -> None:
        self.presented = False
        self.present: Callable[[], None] = lambda: None
        self.comm: str | None = None
        self.error: Refusal | None = None


class Collectives:
    """Belongs to the device-handle thread, but for what runs on its helper threads."""

    def __init__(self, device: Device, post: Callable[[Callable[[], None]], None]) -> None:
        self._device = device
        self._post = post
        self._pending: dict[Key, Pending] = {}
        self._comms: dict[str, Communicator] = {}
        self._ids: dict[str, bytes] = {}
        """Made here, for communicators that this rank has not joined yet."""
        self._making: dict[str, bool] = {}
        """Communicators that a helper thread works on, and whether they are still wanted."""
        self._track: Track | None = None
        self._next_check = 0.0

    def all_reduce(self, origin: Origin, command: commands_pb2.AllReduce) -> Operation:
        session = origin.session
        devices = tuple(sorted(command.devices))
        source = session.buffers.find(command.source)
        destination = session.buffers.find(command.destination)
        op = self._check(command, devices)
        key = (session.channel, devices, command.sequence)
        if key in self._pending:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"operation {command.sequence} of group {list(devices)} was submitted before",
                fix="count a group's operations from 1, each number once",
            )
        pending = self._pending[key] = Pending()
        both = (source,) if source is destination else (destination, source)
        operation = Operation(
            origin,
            partial(self._run, origin, command, key, pending, source, destination, op),
            writes=(origin.stream, *both),
            needs=(source,),
            spoils=(destination,),
        )

        def present() -> None:
            pending.presented = operation.announced = True
            self._present(key, command, op)

        def announce() -> None:
            with contextlib.suppress(Refusal):  # it will be met again, and answered, when its turn comes
                self._ranges(command, source, destination)
                present()

        def forget(_refusal: Refusal) -> None:
            self._pending.pop(key, None)

        operation.after = origin.reply
        operation.on_failure = forget
        # Behind other collectives that have been presented it is presented at once, so that matching does not cost a
        # round trip to the front for each of a row. Behind anything else that would not be safe: the ranks could then
        # be told to go in an order in which one of them cannot.
        operation.on_announce = announce
        pending.present = present
        return operation

    def sync_collective(self, origin: Origin, _command: commands_pb2.SyncCollective) -> Operation:
        def run() -> bool:
            if origin.stream.collectives is not None:
                self._device.tracks.fence(origin.stream.track, origin.stream.collectives)
                origin.stream.collectives = None
            origin.reply()
            return True

        return Operation(origin, run, writes=(origin.stream,))

    def _check(self, command: commands_pb2.AllReduce, devices: tuple[int, ...]) -> str:
        ordinal = self._device.spec.ordinal
        if ordinal not in devices or len(set(devices)) != len(devices):
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"the group {list(command.devices)} was presented to device {ordinal}",
                fix="name each device once, this one among them",
            )
        op = OPS.get(command.op)
        if op is None:
            raise Refusal(Reason.INVALID_ARGUMENT, f"{command.op} is no reduction", fix=f"one of {list(OPS.values())}")
        if command.dtype not in ITEM_SIZES:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"all_reduce of {command.dtype!r}",
                fix=f"one of {', '.join(ITEM_SIZES)}",
                details={"dtype": command.dtype},
            )
        self._device.server.communicators.check("all_reduce", command.dtype, op)
        return op

    def _run(
        self,
        origin: Origin,
        command: commands_pb2.AllReduce,
        key: Key,
        pending: Pending,
        source: Buffer,
        destination: Buffer,
        op: str,
    ) -> bool:
        device = self._device
        since, to, size = self._ranges(command, source, destination)
        if not pending.presented:
            pending.present()
        if pending.error is not None:
            raise pending.error
        if pending.comm is None:
            return False
        communicator = self._comms.get(pending.comm)
        if communicator is None:
            raise Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"the communicator of devices {list(key[1])} is gone",
                fix="submit the operation again; a new communicator is made",
            )
        del self._pending[key]
        track = self._comm_track()
        device.tracks.fence(track, origin.stream.track)
        writes = [destination.usage] if source is destination else [destination.usage, source.usage]
        if source.read_only is not None:
            device.tracks.before(track, [destination.usage], [source.usage])
        else:
            device.tracks.before(track, writes)
        device.begin(origin.stream, size, track=track)
        if command.count:
            operation = Exchange("all_reduce", since, to, command.count, command.dtype, op)
            communicator.enqueue([operation], track.stream)
        origin.stream.collectives = track
        origin.session.touch(track)
        device.telemetry.collectives += 1
        device.telemetry.collective_bytes += size
        return True

    @staticmethod
    def _ranges(command: commands_pb2.AllReduce, source: Buffer, destination: Buffer) -> tuple[int, int, int]:
        """Addresses and size in bytes; refuses what lies outside the buffers."""
        destination.check_writable("all_reduce, destination")
        size = command.count * ITEM_SIZES[command.dtype]
        since = source.range(command.source_offset, size, "all_reduce, source")
        to = destination.range(command.destination_offset, size, "all_reduce, destination")
        return since, to, size

    def _comm_track(self) -> Track:
        if self._track is None:
            self._track = self._device.tracks.acquire()
        return self._track

    # ---- the front's messages ----

    def message(self, payload: bytes, session_of: Callable[[int], Session | None]) -> None:
        """One COLLECTIVE frame; see hearthd/front/collectives.py for the conversation."""
        message = json.loads(payload)
        what = message["op"]
        if what in {"go", "fail"}:
            key = (message["channel"], tuple(message["devices"]), message["sequence"])
            pending = self._pending.get(key)
            if pending is None:
                return
            if what == "go":
                pending.comm = message["comm"]
            else:
                pending.error = _refusal(message["status"])
            session = session_of(message["channel"])
            if session is not None:
                self._device.kick(session)
        elif what == "create_id":
            self._making[message["comm"]] = True
            self._helper(partial(self._create_id, message["comm"], message["ranks"]))
        elif what == "join":
            self._making[message["comm"]] = True
            self._helper(partial(self._join, message))
        elif what == "abort":
            self._abort(message["comm"])

    def _present(self, key: Key, command: commands_pb2.AllReduce, op: str) -> None:
        self._send(
            {
                "op": "present",
                "channel": key[0],
                "devices": list(key[1]),
                "sequence": key[2],
                "signature": {"kind": "all_reduce", "count": command.count, "dtype": command.dtype, "reduce": op},
                "timeout": command.timeout_ns / 1e9 or self._device.spec.collective_timeout,
            }
        )

    def _create_id(self, comm: str, ranks: int) -> None:
        try:
            unique_id = self._device.server.communicators.unique_id(ranks)
        except Exception as error:
            self._post(partial(self._join_failed, comm, error))
            return
        self._post(partial(self._created, comm, unique_id))

    def _created(self, comm: str, unique_id: bytes) -> None:
        if self._making.pop(comm):
            self._ids[comm] = unique_id
            self._send({"op": "id", "comm": comm, "unique_id": base64.b64encode(unique_id).decode()})
        else:
            self._device.server.communicators.forget(unique_id)

    def _join(self, message: dict[str, Any]) -> None:
        comm = message["comm"]
        try:
            unique_id = base64.b64decode(message["unique_id"])
            communicator = self._device.server.communicators.join(unique_id, message["rank"], message["ranks"])
        except Exception as error:
            self._post(partial(self._join_failed, comm, error))
            return
        self._post(partial(self._joined, comm, communicator))

    def _joined(self, comm: str, communicator: Communicator) -> None:
        self._ids.pop(comm, None)
        if self._making.pop(comm):
            self._comms[comm] = communicator
            self._send({"op": "joined", "comm": comm})
        else:  # it was given up meanwhile, and nobody will speak of it again
            self._helper(communicator.abort)

    def _abort(self, comm: str) -> None:
        if comm in self._making:
            self._making[comm] = False
            return
        self._forget_id(comm)
        communicator = self._comms.pop(comm, None)
        if communicator is not None:
            self._helper(communicator.abort)

    def _forget_id(self, comm: str) -> None:
        unique_id = self._ids.pop(comm, None)
        if unique_id is not None:
            self._device.server.communicators.forget(unique_id)

    def _join_failed(self, comm: str, error: Exception) -> None:
        self._making.pop(comm, None)
        self._forget_id(comm)
        refusal = (
            error
            if isinstance(error, Refusal)
            else Refusal(Reason.COMMUNICATOR_FAILED, f"device {self._device.spec.ordinal} could not join: {error}")
        )
        status = base64.b64encode(refusal.to_status().SerializeToString()).decode()
        self._send({"op": "join_failed", "comm": comm, "status": status})

    def _send(self, message: dict[str, Any]) -> None:
        self._device.outbox.put(Kind.COLLECTIVE, json.dumps(message).encode())

    def check(self) -> None:
        """Reports communicators that failed by themselves. Cheap to call often: it looks now and then."""
        now = time.monotonic()
        if not self._comms or now < self._next_check:
            return
        self._next_check = now + CHECK_S
        for comm, communicator in list(self._comms.items()):
            reason = communicator.failed()
            if reason:
                del self._comms[comm]
                self._send({"op": "failed", "comm": comm, "reason": reason})
                self._helper(communicator.abort)

    @staticmethod
    def _helper(work: Callable[[], None]) -> None:
        threading.Thread(target=work, name="communicator", daemon=True).start()


def _refusal(encoded: str) -> Refusal:
    try:
        return from_status(status_pb2.Status.FromString(base64.b64decode(encoded)))
    except (DecodeError, ValueError):
        return Refusal(Reason.COMMUNICATOR_FAILED, "the front refused the collective and gave no reason")
