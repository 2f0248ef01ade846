"""The ranks of a group through plain gRPC stubs, for collectives that the client library would not send; daemons with
several devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hearth_proto.reasons import Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.daemon.harness import BACKEND, DaemonProcess
from tests.support.daemon.raw import TIMEOUT, Execute, Raw

FLOATS = 64
"""Number of elements in each of a rank's two buffers."""
A, B = 1, 2
"""Handles of the buffers: every element of A is the rank's number plus one, every element of B is -1."""


@contextlib.contextmanager
def several(cache: Path, count: int, harmed: bool = False, **config: Any) -> Iterator[DaemonProcess]:
    """Runs a daemon with `count` devices, and checks that it leaves no resources. `harmed`: its device processes may
    end in the meantime."""
    process = DaemonProcess(cache, config, count)
    try:
        if len(process.status()["devices"]) < count:
            pytest.skip(f"needs {count} devices")
        if BACKEND == "cuda":
            with Ranks(process, count) as ranks:  # each process loads NCCL with its first group, which takes seconds
                ranks.work()
        yield process
    except BaseException:
        print(process.log()[-30_000:])
        raise
    finally:
        code = process.stop()
        log, leftovers = process.log(), process.left_behind()
        process.remove()
    assert code == 0 and not leftovers, (leftovers, log[-4000:])
    assert harmed or "device_lost" not in log, log[-4000:]


def operation(kind: str, source: int = 0, destination: int = 0, count: int = FLOATS, **more: Any) -> Any:
    """Builds an operation of a batch: `kind` as in "all_reduce"."""
    fields = {"dtype": "float32", **more}
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        fields.setdefault("op", c.REDUCE_OP_SUM)
    if kind == "barrier":
        fields["dtype"] = ""
    number = getattr(c, f"COLLECTIVE_KIND_{kind.upper()}")
    return c.CollectiveOperation(kind=number, source=source, destination=destination, count=count, **fields)


def collective(devices: Sequence[int], sequence: int, *operations: Any, timeout: float = 20, stream: int = 0) -> Any:
    operation_message = c.Collective(
        devices=devices, sequence=sequence, operations=operations, timeout_ns=int(timeout * 1e9)
    )
    return c.Command(stream=stream, collective=operation_message)


class Ranks:
    """A session with an Execute stream on each of the first `count` devices."""

    def __init__(self, daemon: DaemonProcess, count: int, bearer: str = "") -> None:
        self._open = ExitStack()
        try:
            self.raw = self._open.enter_context(Raw(daemon.unix, bearer))
            self.streams = [self._open.enter_context(self.raw.execute(device)) for device in range(count)]
        except BaseException:
            self._open.close()
            raise
        self.devices = tuple(range(count))
        """Devices in the order of their ranks, unless a method is called with other devices."""
        self._sequences: dict[tuple[int, ...], int] = {}
        for rank, stream in enumerate(self.streams):
            stream.batch(
                c.Command(allocate=c.Allocate(buffer=A, size=4 * FLOATS)),
                c.Command(allocate=c.Allocate(buffer=B, size=4 * FLOATS)),
                *self.filled(rank),
            )
            assert stream.failures() == []

    @staticmethod
    def filled(rank: int) -> list[Any]:
        """Returns the commands that reset both buffers to their initial values."""
        return [
            c.Command(fill=c.Fill(buffer=buffer, size=4 * FLOATS, pattern=np.float32(value).tobytes()))
            for buffer, value in ((A, rank + 1), (B, -1))
        ]

    def next(self, devices: Sequence[int] | None = None) -> int:
        """Returns the sequence number of the next operation of these devices."""
        key = tuple(devices or self.devices)
        self._sequences[key] = number = self._sequences.get(key, 0) + 1
        return number

    def data(self, device: int, buffer: int, count: int = FLOATS) -> list[float]:
        result = self.streams[device].ask(c.Command(read=c.Read(buffer=buffer, size=4 * count)))
        assert not result.HasField("error"), from_status(result.error)
        return list(np.frombuffer(result.read.data, np.float32))

    def failure(self, device: int) -> Refusal:
        """Returns the only failure of the device's default stream."""
        entries = self.streams[device].failures()
        assert len(entries) == 1 and entries[0].command.startswith("collective"), entries
        return from_status(entries[0].status)

    def work(self, devices: Sequence[int] | None = None, timeout: float = 20) -> None:
        """Checks that the next operation works, also after failures."""
        devices = tuple(devices or self.devices)
        number = self.next(devices)
        for device in devices:
            batch = [*self.filled(device), collective(devices, number, operation("all_reduce", A, B), timeout=timeout)]
            self.streams[device].batch(*batch)
        expected = sum(device + 1 for device in devices)
        for device in devices:
            assert set(self.data(device, B)) == {expected}, device
            assert set(self.data(device, A)) == {device + 1}, device
            assert self.streams[device].failures() == []

    def groups(self) -> list[Any]:
        """Returns the flight recorder's entries of the session's groups."""
        request = node_pb2.DescribeGroupsRequest(session_token=self.raw.token)
        answer = self.raw.node.DescribeGroups(request, timeout=TIMEOUT, metadata=self.raw.metadata)
        return list(answer.groups)

    def recorded(self, devices: Sequence[int], sequence: int) -> Any:
        """Returns the flight recorder's entry of an operation of the group of these devices."""
        groups = [group for group in self.groups() if [member.device for member in group.members] == list(devices)]
        assert len(groups) == 1, self.groups()
        (entry,) = [member for member in groups[0].operations if member.sequence == sequence]
        return entry

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def refusal_of(stream: Execute, command: Any) -> Refusal:
    """Returns the refusal of a command that is refused immediately."""
    result = stream.ask(command)
    assert result.HasField("error"), result
    return from_status(result.error)
