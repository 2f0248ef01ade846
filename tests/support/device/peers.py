"""A device process with fake communicators, and the front's side of its COLLECTIVE frames."""

from __future__ import annotations

import base64
import ctypes
import json
import threading
from collections.abc import Sequence
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.collectives.communicators import Memberships
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuStream
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.rig import Rig

WRITTEN = 0x77
"""The byte that every exchange writes to its destinations."""


class FakeCommunicator:
    """A communicator whose exchanges run until `release`, or until it is aborted: an aborted exchange writes half of
    its bytes."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.given: list[list[CollectiveExchange]] = []
        self.streams: list[CpuStream] = []
        self.failure = ""
        self.refuses = ""
        self.abort_blocks = threading.Event()
        self.abort_blocks.set()
        self.aborting = threading.Event()
        self.stopped = threading.Event()
        self._free = threading.Semaphore(0)
        self._aborted = False

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: CpuStream) -> None:
        if self.refuses:
            raise Refusal(Reason.COMMUNICATOR_FAILED, self.refuses)
        self.given.append(list(operations))
        self.streams.append(stream)

        def work() -> None:
            self._free.acquire()
            for operation in operations:
                if operation.destination:
                    size = operation.count * {"float32": 4}.get(operation.dtype, 1)
                    ctypes.memset(operation.destination, WRITTEN, size // 2 if self._aborted or self.failure else size)

        stream.submit(work)

    def release(self, count: int = 1) -> None:
        """Lets `count` further exchanges complete."""
        self._free.release(count)

    def failure_reason(self) -> str:
        return self.failure

    can_stop = False
    """True if the communicator can be stopped before it is aborted, as NCCL's since 2.28.7."""

    def stop(self) -> None:
        assert self.can_stop
        self._aborted = True
        self.failure = self.failure or "stopped"
        self.stopped.set()
        self._free.release(1000)

    def abort(self) -> None:
        self.aborting.set()
        self._aborted = True
        self.failure = self.failure or "aborted"
        self.abort_blocks.wait(30)
        self._free.release(1000)


class FakeCommunicators:
    def __init__(self) -> None:
        self.joined: list[FakeCommunicator] = []
        self.forgotten: list[bytes] = []
        self.threads: dict[str, threading.Thread] = {}
        """The thread of the last call of each method that may wait for peers."""
        self.join_blocks = threading.Event()
        self.join_blocks.set()

    def check(self, kind: str, dtype: str, op: str) -> None:
        if dtype == "uint16":
            raise Refusal(Reason.UNSUPPORTED, f"{kind} of {dtype} with {op}")

    def unique_id(self, ranks: int) -> bytes:
        self.threads["unique_id"] = threading.current_thread()
        return b"id of %d" % ranks

    def forget(self, unique_id: bytes) -> None:
        self.forgotten.append(unique_id)

    def join(self, unique_id: bytes, rank: int, ranks: int) -> FakeCommunicator:
        self.threads["join"] = threading.current_thread()
        self.join_blocks.wait(30)
        if unique_id == b"bad":
            raise Refusal(Reason.COMMUNICATOR_FAILED, "no such id")
        self.joined.append(FakeCommunicator(rank, ranks))
        return self.joined[-1]


class PeerServer(CpuServer):
    def __init__(self, spec: DeviceSpec) -> None:
        super().__init__(spec)
        self.communicators: Any
        self.copy_communicators: Any
        self.communicators = self.peers = FakeCommunicators()
        self.copy_communicators = self.copies = FakeCommunicators()


class PeerRig(Rig[PeerServer]):
    """Device 0 of two. Buffers 1, 2 and 3 hold 64 bytes of the values 1, 2 and 3."""

    def __init__(self, server: Any = PeerServer, **spec: Any) -> None:
        super().__init__(DeviceSpec(0, "cpu", 0, **spec), server)
        self.memberships.decision_s = 60.0  # the test decides, however late
        self._heard: list[dict[str, Any]] = []
        self._sequences: dict[Any, int] = {}
        for buffer in (1, 2, 3):
            self.batch(
                c.Command(allocate=c.Allocate(buffer=buffer, size=64)),
                c.Command(fill=c.Fill(buffer=buffer, size=64, pattern=bytes([buffer]))),
            )

    @property
    def memberships(self) -> Memberships:
        """The communicators that the rank has joined; its time limits may be changed."""
        return self.process.executor.collectives.members

    def close(self) -> None:
        for peer in self.server.peers.joined:
            peer.abort_blocks.set()
            peer.release(1000)
        self.server.peers.join_blocks.set()
        super().close()

    # ---- the front's side ----

    def hear(self, op: str) -> dict[str, Any]:
        """Returns the next COLLECTIVE frame of this kind; other frames are kept for later calls."""
        while True:
            for index, message in enumerate(self._heard):
                if message["op"] == op:
                    return self._heard.pop(index)
            self._heard += _split_message(json.loads(self.until(Kind.COLLECTIVE).payload))

    def heard(self, op: str) -> list[dict[str, Any]]:
        """Returns the messages of this kind received so far, after the device process has handled everything sent to
        it."""
        self.gauges()
        for frame in self._frames:
            if frame.kind == Kind.COLLECTIVE:
                self._heard += _split_message(json.loads(frame.payload))
        self._frames = [frame for frame in self._frames if frame.kind != Kind.COLLECTIVE]
        return [message for message in self._heard if message["op"] == op]

    def tell(self, op: str, **body: Any) -> None:
        self.send(Kind.COLLECTIVE, json.dumps({"op": op, **body}).encode())

    def join(self, comm: str = "a-1", group: str = "", rank: int = 0, ranks: int = 2) -> FakeCommunicator:
        joined_before = len(self.server.peers.joined)
        self.tell("join", comm=comm, unique_id=encode(b"x"), rank=rank, ranks=ranks, group=group)
        assert self.hear("joined")["comm"] == comm
        return self.server.peers.joined[joined_before]

    def go(self, presented: dict[str, Any], index: int, comm: str = "a-1") -> None:
        address = {name: presented[name] for name in ("channel", "group", "devices", "sequence")}
        row = {"count": presented["count"]} if "count" in presented else {}
        self.tell("go", **address, **row, comm=comm, rank=0, ranks=2, index=index)

    def abort(self, refusal: Refusal | None = None, comm: str = "a-1") -> None:
        status = encode(refusal.to_status().SerializeToString()) if refusal is not None else ""
        self.tell("abort", comm=comm, reason="a peer is gone", status=status)

    # ---- the client's side ----

    def reason(self, ident: int) -> str:
        """Returns the reason of the answer's error; empty if it succeeded."""
        result = self.answer(ident)
        return str(from_status(result.error).reason) if result.HasField("error") else ""

    def read(self, buffer: int, stream: int = 0, size: int = 4) -> int:
        return self.start(stream=stream, read=c.Read(buffer=buffer, size=size))

    def sync(self, stream: int = 0) -> int:
        return self.start(stream=stream, sync=c.Sync())

    def bytes_of(self, buffer: int, size: int = 4) -> bytes:
        result = self.call(read=c.Read(buffer=buffer, size=size))
        assert not result.HasField("error"), result.error
        return bytes(result.read.data)


def _split_message(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Splits the message of several consecutive operations into one message for each operation."""
    count = message.pop("count", 1)
    messages = [message]
    for index in range(1, count):
        behind = [[message["devices"], message["sequence"] + index - 1]]
        messages.append({**message, "sequence": message["sequence"] + index, "behind": behind})
    return messages


def encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def operation(kind: int = c.COLLECTIVE_KIND_ALL_REDUCE, source: int = 1, destination: int = 1, **more: Any) -> Any:
    fields = {"count": 16, "dtype": "float32", "op": c.REDUCE_OP_SUM, **more}
    return c.CollectiveOperation(kind=kind, source=source, destination=destination, **fields)


def collective(sequence: int = 1, *operations: Any, stream: int = 0, timeout: float = 20, **more: Any) -> c.Command:
    membership = more or {"devices": (0, 1)}
    command = c.Collective(
        sequence=sequence, operations=operations or (operation(),), timeout_ns=int(timeout * 1e9), **membership
    )
    return c.Command(stream=stream, collective=command)
