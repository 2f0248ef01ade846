"""Communicators: made for a set of devices when first needed, kept, and given up on all ranks together.

Pure, like `collectives.py`. A communicator is keyed by its sorted devices and the process of each, and shared by all
sessions that these processes serve. Operations that
are complete wait here while it is being made; afterwards every rank is told `go` in one order, the same on every link.
"""

from __future__ import annotations

import base64
import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import status_pb2
from hearthd.front.collectives import Match, Send, fail_all


@dataclass
class Communicator:
    id: int
    devices: tuple[int, ...]
    processes: tuple[int, ...]
    """The generation of each device's process."""
    deadline: float
    """By when it has to be made; infinity once it is."""
    unique_id: str = ""
    joined: set[int] = field(default_factory=set)
    queue: deque[Match] = field(default_factory=deque)

    @property
    def ready(self) -> bool:
        return len(self.joined) == len(self.devices)

    @property
    def key(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.devices, self.processes

    @property
    def ranks(self) -> list[tuple[int, int]]:
        """Each device and the generation of its process."""
        return list(zip(self.devices, self.processes, strict=True))


class Communicators:
    """All live communicators of the node."""

    def __init__(self) -> None:
        self._by_ranks: dict[tuple[tuple[int, ...], tuple[int, ...]], Communicator] = {}
        self._by_id: dict[int, Communicator] = {}
        self._ids = itertools.count(1)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def deadline(self) -> float | None:
        """When `expire` is due next."""
        waiting = [comm.deadline for comm in self._by_id.values() if not comm.ready]
        return min(waiting, default=None)

    def submit(self, match: Match) -> list[Send]:
        """An operation whose ranks are all there: runs it, or has its communicator made first."""
        devices = match.key.devices
        processes = tuple(match.processes.get(device, 0) for device in devices)
        comm = self._by_ranks.get((devices, processes))
        if comm is None:
            comm = Communicator(next(self._ids), devices, processes, match.deadline)
            self._by_ranks[comm.key] = self._by_id[comm.id] = comm
            comm.queue.append(match)
            return [Send(devices[0], {"op": "create_id", "comm": comm.id, "ranks": len(devices)}, processes[0])]
        if comm.ready:
            return _go(comm, match)
        comm.queue.append(match)
        return []

    def message(self, device: int, body: Mapping[str, Any], process: int = 0) -> list[Send]:
        """What a device's process says about a communicator; one that is no longer known is not spoken of."""
        comm = self._by_id.get(int(body["comm"]))
        if comm is None or (device, process) not in comm.ranks:
            return []
        op = body["op"]
        if op == "id" and device == comm.devices[0] and not comm.unique_id:
            comm.unique_id = str(body["unique_id"])
            return [
                Send(
                    ordinal,
                    {
                        "op": "join",
                        "comm": comm.id,
                        "unique_id": comm.unique_id,
                        "rank": rank,
                        "ranks": len(comm.devices),
                    },
                    generation,
                )
                for rank, (ordinal, generation) in enumerate(comm.ranks)
            ]
        if op == "joined" and comm.unique_id:
            return self._joined(comm, device)
        if op == "join_failed":
            return self._give_up(comm, f"device {device} could not join: {_reason(body)}", except_for={device})
        if op == "failed":
            return self._give_up(comm, f"device {device} reports: {body.get('reason') or 'a failure'}")
        return []

    def _joined(self, comm: Communicator, device: int) -> list[Send]:
        if comm.ready:
            return []
        comm.joined.add(device)
        sends: list[Send] = []
        while comm.ready and comm.queue:
            sends += _go(comm, comm.queue.popleft())
        return sends

    def expire(self, now: float) -> list[Send]:
        """Gives up what could not be made in time, and says who did not join."""
        sends: list[Send] = []
        for comm in [comm for comm in self._by_id.values() if not comm.ready and comm.deadline <= now]:
            late = [device for device in comm.devices if device not in comm.joined] if comm.unique_id else comm.devices
            names = ", ".join(map(str, late))
            sends += self._give_up(
                comm,
                f"devices {names} did not join in time",
                refusal=Refusal(
                    Reason.COLLECTIVE_TIMEOUT,
                    f"The communicator of group {list(comm.devices)} was not made in time: devices {names} did not "
                    "join.",
                    fix="Try again; a longer timeout leaves more time for the first operation of a group.",
                    details={"missing": names},
                ),
            )
        return sends

    def device_lost(self, device: int, why: str, process: int = 0) -> list[Send]:
        """Aborts the communicators of the device's process on the survivors; the next use of the group makes a new
        one."""
        sends: list[Send] = []
        for comm in [comm for comm in self._by_id.values() if (device, process) in comm.ranks]:
            for match in comm.queue:
                match.channels.pop(device, None)
            sends += self._give_up(comm, f"device {device} was lost: {why}", except_for={device})
        return sends

    def session_closed(self, session: str) -> None:
        """Forgets a session's operations; communicators stay for the others."""
        for comm in self._by_id.values():
            comm.queue = deque(match for match in comm.queue if match.key.session != session)

    def _give_up(
        self, comm: Communicator, why: str, except_for: set[int] | None = None, refusal: Refusal | None = None
    ) -> list[Send]:
        del self._by_id[comm.id], self._by_ranks[comm.key]
        refusal = refusal or Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The communicator of group {list(comm.devices)} failed: {why}.",
            fix="Present the operation again, with the next sequence number on every device; a new one is made.",
            details={"devices": ", ".join(map(str, comm.devices))},
        )
        sends = [
            Send(ordinal, {"op": "abort", "comm": comm.id, "reason": why}, generation)
            for ordinal, generation in comm.ranks
            if ordinal not in (except_for or ())
        ]
        for match in comm.queue:
            sends += fail_all(match, refusal)
        return sends


def _go(comm: Communicator, match: Match) -> list[Send]:
    return [
        Send(
            device,
            {
                "op": "go",
                "channel": match.channels[device],
                "devices": list(comm.devices),
                "sequence": match.key.sequence,
                "comm": comm.id,
            },
            generation,
        )
        for device, generation in comm.ranks
    ]


def _reason(body: Mapping[str, Any]) -> str:
    try:
        status = status_pb2.Status.FromString(base64.b64decode(str(body.get("status", ""))))
    except (DecodeError, ValueError):
        return "no reason given"
    return from_status(status).message or "no reason given"
