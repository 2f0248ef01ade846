"""Copies of shared memory are sent once, also under Ctrl-C, and hold their memory until they are answered."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

import hearth
from hearth.transfer.pinned_copy import PinnedCopy
from hearth.transfer.plan import BufferRegion
from hearth.transport import memory_segments
from hearth.transport.memory_segments import Segment, SegmentPosition
from hearth.transport.spin_wait import DOWN, UP
from hearth_proto import reasons
from tests.support.client import waits
from tests.support.client.internals import connection_of, handle_of, memory_of
from tests.support.client.interrupts import interrupting
from tests.support.client.lane_daemon import LaneDaemon

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")

wait_for = partial(waits.wait_for, seconds=5.0)
SIZE = 1 << 16


class Daemon(LaneDaemon):
    """Daemon that answers copies of shared memory without copying."""

    short = 0

    def do_write(self, command: Any, region: Any, result: Any) -> None:
        if not region.HasField("shared"):
            super().do_write(command, region, result)

    def do_read(self, command: Any, region: Any, result: Any) -> None:
        if not region.HasField("shared"):
            return super().do_read(command, region, result)
        self._raise_errors(command.stream)
        result.read.size = region.size - self.short


class Shared:
    """Shared memory that is never lost."""

    connection = SimpleNamespace(closed=False, recently_alive=True)

    def __init__(self, gpu: hearth.Device) -> None:
        self.attachment = connection_of(gpu).attachment()

    def lost(self, error: hearth.HearthError) -> bool:
        return False

    def enable_signals(self) -> None:
        """Enables no signals."""


class Memory:
    """Memory to which a copy refers."""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with TemporaryDirectory() as directory:
        daemon = Daemon(Path(directory))
        yield daemon
        daemon.stop()


@pytest.fixture
def segment() -> Segment:
    return Segment(SIZE)


def copies(gpu: hearth.Device, segment: Segment, direction: int, handle: int = 0) -> PinnedCopy:
    region, position = BufferRegion(0, handle or handle_of(gpu.zeros(SIZE, "u1")), 0), SegmentPosition(segment, 0)
    return PinnedCopy(direction, connection_of(gpu), Shared(gpu), region, position, 7, SIZE)  # type: ignore[arg-type]


@pytest.mark.parametrize("direction", [UP, DOWN], ids=["up", "down"])
@pytest.mark.parametrize("awaited", [False, True], ids=["begun", "waited for"])
def test_ctrl_c_at_any_line(
    daemon: Daemon, gpu: hearth.Device, segment: Segment, direction: int, awaited: bool
) -> None:
    copy = copies(gpu, segment, direction)
    name = "write" if direction == UP else "read"
    step, hit = 0, True
    while hit:
        step += 1
        gpu.synchronize()
        before, memory = daemon.count(name), Memory()
        reference = weakref.ref(memory)
        hit = interrupting(partial(copy.run if awaited else copy.begin, memory), step)
        del memory
        gpu.synchronize()
        assert daemon.count(name) - before in ((0, 1) if hit else (1,))
        session = connection_of(gpu).attachment().session
        assert wait_for(lambda session=session: session.idle and not session.outstanding)
        if reference() is not None:  # a traceback may refer to the memory in a cycle
            gc.collect()
        assert reference() is None, "all that was sent is answered"
    assert step > 40 and not segment.spoiled


def test_the_memory_is_kept_until_the_answer_has_arrived(daemon: Daemon, gpu: hearth.Device, segment: Segment) -> None:
    for direction, name in ((UP, "write"), (DOWN, "read")):
        daemon.never_answer.add(name)
        for awaited in (False, True):
            copy, memory = copies(gpu, segment, direction), Memory()
            reference = weakref.ref(memory)
            if awaited:
                with pytest.raises(hearth.TimeoutError):
                    copy.run(memory, 0.05)
            else:
                copy.begin(memory)
            del memory, copy
            gc.collect()
            assert reference() is not None
    daemon.lose_on = "sync"
    with pytest.raises(hearth.DeviceLostError):
        gpu.synchronize()
    assert segment.spoiled, "the device process may still be copying"


def test_unexpected_answers_raise_errors(daemon: Daemon, gpu: hearth.Device, segment: Segment) -> None:
    read, write = copies(gpu, segment, DOWN), copies(gpu, segment, UP)
    assert read.run(None) and write.run(None)
    daemon.short = 1
    with pytest.raises(hearth.TransferError, match=f"{SIZE - 1} of {SIZE}"):
        read.run(None)
    read.begin(None)
    with pytest.raises(hearth.TransferError, match=f"{SIZE - 1} of {SIZE}"):
        gpu.synchronize()
    daemon.short = 0
    for copy, name in ((read, "read"), (write, "write")):
        refusal = reasons.Refusal(reasons.Reason.OUT_OF_BOUNDS, "no")
        daemon.fail_next[name] = refusal
        with pytest.raises(hearth.HearthError, match="no"):
            copy.run(None)
        daemon.fail_next[name] = refusal
        copy.begin(None)
        with pytest.raises(hearth.HearthError, match="no"):
            gpu.synchronize()
    assert read.run(None) and write.run(None) and not segment.spoiled


def test_repeated_copy_takes_the_full_path_if_its_inputs_changed(
    gpu: hearth.Device, segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller then takes the full path, which finds the cause."""
    x, y, connection = gpu.zeros(SIZE, "u1"), gpu.zeros(SIZE, "u1"), connection_of(gpu)
    copy = copies(gpu, segment, UP, handle_of(x))
    assert copy.repeatable(memory_of(x), None, True) and not copy.repeatable(memory_of(y), None, True)
    stream = gpu.stream()
    assert not copy.repeatable(memory_of(x), stream, True) and copy.repeatable(memory_of(x), gpu.default_stream, True)
    with gpu.graph():
        assert not copy.repeatable(memory_of(x), gpu.current_stream, True)
    error = hearth.TransferError("lost", reason="TRANSFER_ABORTED")
    connection.defer(error)
    assert not copy.repeatable(memory_of(x), None, True)
    with pytest.raises(hearth.TransferError):
        connection.raise_deferred()
    with monkeypatch.context() as patched:
        patched.setattr(connection, "refusal", error)
        assert not copy.repeatable(memory_of(x), None, True)
    for name, value, blocking in (("closed", True, True), ("recently_alive", False, False)):
        with monkeypatch.context() as patched:
            patched.setattr(Shared.connection, name, value)
            assert not copy.repeatable(memory_of(x), None, blocking) and copy.repeatable(
                memory_of(x), None, not blocking
            )
    x.free()
    assert not copy.repeatable(memory_of(x), None, True)
