"""Daemons with one device each, and groups over them through plain gRPC stubs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import node_pb2
from tests.support.collectives.ranks import FLOATS, A, B, operation
from tests.support.daemon.durables import QUICK
from tests.support.daemon.harness import BACKEND, DaemonProcess, wait_until
from tests.support.daemon.kernels import GATE
from tests.support.daemon.lent import LentDaemon
from tests.support.daemon.raw import TIMEOUT, Raw


def on_device(number: int, **config: Any) -> dict[str, Any]:
    """Returns the configuration of a daemon that uses only the device with this number: NCCL requires a separate GPU
    for each rank."""
    visible = [number if BACKEND == "cuda" else 0]
    return {**config, "devices": {"visible": visible, **config.get("devices", {})}}


@contextlib.contextmanager
def nodes(cache: Path, count: int = 2, killed: Sequence[int] = (), **config: Any) -> Iterator[list[DaemonProcess]]:
    """Runs daemons of one device each, and checks that they leave no resources. `killed` lists the daemons that the
    test itself ends."""
    started: list[DaemonProcess] = []
    try:
        with _skip_without_gpus(count):
            for number in range(count):
                started.append(DaemonProcess(cache, on_device(number, **config), 1))
        yield started
    finally:
        codes = [process.stop() for process in started]
        leftovers = [process.left_behind() for process in started]
        logs = [process.log() for process in started]
        for process in started:
            process.remove()
    assert not any(leftovers), leftovers
    for number, (code, log) in enumerate(zip(codes, logs, strict=True)):
        assert number in killed or code == 0, log[-4000:]


@contextlib.contextmanager
def _skip_without_gpus(count: int) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        if BACKEND == "cuda" and "devices.visible" in str(error):
            pytest.skip(f"needs {count} GPUs")
        raise


class LentNodes:
    """Daemons of one device each, lent to one test after another. Tests may lose their devices and end the daemons."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._lent: list[LentDaemon] = []

    def lend(self, count: int) -> list[DaemonProcess]:
        """Returns the first `count` daemons, each idle."""
        return [self.one(number) for number in range(count)]

    def one(self, number: int) -> DaemonProcess:
        """Returns an idle daemon, whatever state the others are in; a daemon that has ended is replaced by a new
        one."""
        while len(self._lent) <= number:
            self._lent.append(LentDaemon(self._cache, on_device(len(self._lent), devices=QUICK), 1))
        with _skip_without_gpus(number + 1):
            return self._lent[number].lend()

    def close(self) -> None:
        for daemon in self._lent:
            daemon.close()


class Rank:
    """A session on one daemon with an Execute stream on its device 0 and the buffers A (every element is rank + 1) and
    B (every element is -1)."""

    def __init__(self, daemon: DaemonProcess, rank: int, bearer: str = "") -> None:
        self._open = ExitStack()
        self.daemon, self.rank = daemon, rank
        self.raw = self._open.enter_context(Raw(daemon.unix, bearer))
        self.attach()

    def attach(self) -> None:
        """Opens a new Execute stream with new buffers: at first, and again after the loss of a process."""
        self.stream = self.raw.execute(0)
        self.stream.batch(
            c.Command(allocate=c.Allocate(buffer=A, size=4 * FLOATS)),
            c.Command(allocate=c.Allocate(buffer=B, size=4 * FLOATS)),
            *self.filled(),
        )

    def filled(self) -> list[Any]:
        return [
            c.Command(fill=c.Fill(buffer=buffer, size=4 * FLOATS, pattern=np.float32(value).tobytes()))
            for buffer, value in ((A, self.rank + 1), (B, -1))
        ]

    def call(self, method: str, **fields: Any) -> Any:
        """Calls a method of NodeService that requires the session's token."""
        request = getattr(node_pb2, f"{method}Request")(session_token=self.raw.token, **fields)
        return getattr(self.raw.node, method)(request, timeout=TIMEOUT, metadata=self.raw.metadata)

    def present(self, group: bytes, sequence: int, *operations: Any, timeout: float = 60) -> None:
        self.stream.batch(self.part(group, sequence, *operations, timeout=timeout))

    @staticmethod
    def part(group: bytes, sequence: int, *operations: Any, timeout: float = 60) -> Any:
        """Returns the command of this rank's part in an operation; by default an all_reduce of A into B."""
        operations = operations or (operation("all_reduce", A, B),)
        timeout_ns = int(timeout * 1e9)
        return c.Command(
            collective=c.Collective(group=group, sequence=sequence, operations=operations, timeout_ns=timeout_ns)
        )

    def hold(self) -> None:
        """Blocks this rank's stream with a kernel that runs until its device process is killed."""
        function, one = self.raw.function(GATE, "hold"), c.Dim3(x=1)
        launch = c.Launch(function=function, grid=one, block=one, arguments=[c.Argument(uint64=0)])
        self.stream.batch(c.Command(launch=launch))

    def state(self, group: bytes, sequence: int) -> str:
        """Returns the daemon's state of an operation: the coordinator knows the states of all ranks, other daemons only
        their own."""
        for group_info in self.call("DescribeGroups").groups:
            if group_info.group == group:
                return "".join(entry.state for entry in group_info.operations if entry.sequence == sequence)
        return ""

    def data(self, buffer: int = B) -> list[float]:
        result = self.stream.ask(c.Command(read=c.Read(buffer=buffer, size=4 * FLOATS)))
        assert not result.HasField("error"), from_status(result.error)
        return list(np.frombuffer(result.read.data, np.float32))

    def failure(self) -> Refusal:
        """Returns the stream's only failure."""
        entries = self.stream.failures()
        assert len(entries) == 1 and entries[0].command.startswith("collective"), entries
        return from_status(entries[0].status)

    def close(self) -> None:
        self.stream.cancel()
        self._open.close()

    def abandon(self) -> None:
        """Closes the client side after the daemon has ended."""
        self.stream.cancel()
        self._open.pop_all()
        self.raw.channel.close()

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def ranks(*daemons: DaemonProcess) -> Iterator[list[Rank]]:
    """Yields a rank on each daemon."""
    with ExitStack() as stack:
        yield [stack.enter_context(Rank(daemon, number)) for number, daemon in enumerate(daemons)]


def members(count: int) -> list[node_pb2.GroupMember]:
    """Returns the group members for device 0 of each of `count` nodes."""
    return [node_pb2.GroupMember(node=number, device=0) for number in range(count)]


def form(all_ranks: Sequence[Rank]) -> bytes:
    """Forms a group of the ranks, coordinated by the first rank's daemon, and returns its id."""
    group_members = members(len(all_ranks))
    created = all_ranks[0].call("CreateGroup", members=group_members)
    for rank in all_ranks[1:]:
        rank.call("JoinGroup", group=created.group, node=rank.rank, members=group_members, ticket=created.ticket)
    return bytes(created.group)


def work(all_ranks: Sequence[Rank], group: bytes, sequence: int) -> None:
    """Checks that an operation succeeds, also after failures."""
    for rank in all_ranks:
        rank.stream.batch(*rank.filled(), rank.part(group, sequence))
    expected = sum(rank.rank + 1 for rank in all_ranks)
    for rank in all_ranks:
        assert set(rank.data()) == {expected}
        assert rank.stream.failures() == []


def launch_and_block(all_ranks: Sequence[Rank], group: bytes, sequence: int, stuck: Rank) -> None:
    """Brings an operation to the state in which all ranks have launched it and wait in it for `stuck`, whose stream is
    blocked."""
    stuck.hold()
    for rank in all_ranks:
        rank.present(group, sequence, timeout=30)
    wait_until(lambda: all_ranks[0].state(group, sequence) == "launched", "the launch")


def needs_rebuild(refusal: Refusal) -> bool:
    """Returns whether the refusal says that the group has failed and must be rebuilt."""
    return refusal.reason == Reason.COMMUNICATOR_FAILED and "rebuild" in refusal.fix
