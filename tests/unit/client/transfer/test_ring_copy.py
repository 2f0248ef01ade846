"""Transfers through the ring, with a device process that answers at any time and in any way: every byte arrives or an
error is raised, and every slot is returned."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hearth.errors import DeviceLostError, HearthError, TimeoutError
from hearth.transfer import plan, ring_buffer, ring_copy, router, shared
from hearth.transfer.plan import BufferRegion
from hearth.transfer.ring_buffer import Ring, Slot
from hearth.transfer.ring_copy import RingDownload, RingUpload
from hearth.transport.memory_segments import Segment
from hearth_proto.layouts import RowLayout
from hearth_proto.v1 import commands_pb2
from tests.support.client.replies import lone_reply

EACH = 1000
REFUSED = HearthError("refused", reason="OUT_OF_BOUNDS")


class Device:
    """Memory, and a thread that executes commands in order. `plan` may fail or delay the n-th command."""

    def __init__(self, size: int, slots: int = 4, stall: float = 0.2) -> None:
        self.memory = np.zeros(size, np.uint8)
        self.commands = self._heard = 0
        self.both = threading.Event()
        self.plan: Any = lambda number: None
        self.session = SimpleNamespace(error=None)
        self.attachment = self
        self.alive = True
        self.segments: dict[int, Segment] = {}
        self._numbers = itertools.count(1)
        self.mint = itertools.count(1).__next__
        self.ring = Ring(self._slot, slots, stall)
        self.deferred: list[HearthError] = []
        self.splits: list[tuple[int, int]] = []
        """The `split` of each command; (0, 0) without one."""
        self.kernel_output = SimpleNamespace(deliver=lambda: None)
        self.defer = lambda error, whose: self.deferred.append(error)
        self._queue: SimpleQueue[tuple[commands_pb2.Command, Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _slot(self) -> Slot:
        number = next(self._numbers)
        self.segments[number] = Segment(1 << 16)
        return Slot(self.segments[number], number)

    def lost(self, error: HearthError) -> bool:
        return error.reason == "INVALID_HANDLE" and not self.alive

    def submit_serialized(self, command: bytes, reply: Any, *, one_way: bool) -> None:
        if self.session.error is not None:
            raise self.session.error.again()
        self._queue.put((commands_pb2.Command.FromString(command), reply))
        self._heard += 1
        if self._heard == 2:
            self.both.set()

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(20)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            command, reply = item
            split = (command.write if command.HasField("write") else command.read).split
            self.splits.append((split.number, split.size))
            error = self.plan(self.commands)
            self.commands += 1
            if error is not None:
                reply.set_error(error)
                continue
            result = commands_pb2.Result()
            if command.HasField("write"):
                self._copy(command.write, True)
            else:
                self._copy(command.read, False)
                result.read.size = command.read.size
            reply.set_result(result)

    def _copy(self, copy: Any, write: bool) -> None:
        shared = self.segments[copy.shared.segment].bytes[copy.shared.offset :][: copy.size]
        rows = RowLayout(0, copy.size) if not copy.HasField("rows") else RowLayout(0, *_rows(copy.rows))
        assert rows.size == copy.size
        for row in range(rows.rows):
            device_bytes = self.memory[copy.offset + row * rows.pitch :][: rows.width]
            slot_bytes = shared[row * rows.width :][: rows.width]
            assert len(device_bytes) == len(slot_bytes) == rows.width
            if write:
                device_bytes[:] = slot_bytes
            else:
                slot_bytes[:] = device_bytes


def _rows(message: Any) -> tuple[int, int, int]:
    return message.width, message.rows, message.pitch


@contextlib.contextmanager
def device(size: int, slots: int = 4, stall: float = 0.2) -> Iterator[Device]:
    simulated = Device(size, slots, stall)
    try:
        yield simulated
    finally:
        simulated.close()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_copy, "piece_bytes", lambda size: EACH)
    monkeypatch.setattr(ring_copy, "threads", lambda: 3)


def noise(size: int) -> np.ndarray:
    return np.random.default_rng(size).integers(0, 255, size, np.uint8)


def upload(gpu: Device, region: BufferRegion, host: np.ndarray, progress: Any = None) -> int:
    return RingUpload(gpu, gpu, region, host, progress).run()  # type: ignore[arg-type]


def download(
    gpu: Device, region: BufferRegion, host: np.ndarray, progress: Any = None, timeout: float | None = None
) -> int:
    return RingDownload(gpu, gpu, region, host, progress, timeout).run()  # type: ignore[arg-type]


def settled(gpu: Device) -> None:
    """Waits until all commands are answered, and checks that every slot was returned."""
    gpu.close()
    assert gpu.ring.idle == gpu.ring.slot_count


@given(st.integers(1, 20 * EACH), st.integers(0, 50), st.integers(1, 5))
@settings(max_examples=40)
def test_every_size_and_offset(size: int, offset: int, slots: int) -> None:
    host, into = noise(size), np.zeros(size, np.uint8)
    done: list[int] = []
    with device(size + 100, slots) as gpu:
        assert upload(gpu, BufferRegion(0, 1, offset), host, lambda so_far, total: done.append(so_far)) == size
        assert download(gpu, BufferRegion(0, 1, offset), into, lambda so_far, total: done.append(-so_far)) == size
        settled(gpu)
        np.testing.assert_array_equal(into, host)
        assert not gpu.memory[:offset].any() and not gpu.memory[offset + size :].any()
        assert done == sorted(done[: done.index(size) + 1]) + sorted(done[done.index(size) + 1 :], reverse=True)
        assert done[-1] == -size


@given(st.integers(1, 300), st.integers(1, 1500), st.integers(0, 40))
@settings(max_examples=40)
def test_rows_of_a_pitched_array(rows: int, width: int, gap: int) -> None:
    host, into = noise(rows * width), np.zeros(rows * width, np.uint8)
    region = BufferRegion(0, 1, 5, RowLayout(5, width, rows, width + gap))
    with device(5 + rows * (width + gap)) as gpu:
        gpu.memory[:] = 7
        assert upload(gpu, region, host) == len(host)
        assert download(gpu, region, into) == len(host)
        settled(gpu)
        np.testing.assert_array_equal(into, host)
        device_bytes = gpu.memory[5:].reshape(rows, width + gap)
        np.testing.assert_array_equal(device_bytes[:, :width], host.reshape(rows, width))
        assert (device_bytes[:, width:] == 7).all() and (gpu.memory[:5] == 7).all()


def test_rows_longer_than_a_slot_take_another_path() -> None:
    width = ring_buffer.SLOT_BYTES + 1
    with device(10) as gpu:
        region = BufferRegion(0, 1, 0, RowLayout(0, width, 2, width + 1))
        assert upload(gpu, region, np.zeros(2 * width, np.uint8)) == 0
        assert download(gpu, region, np.zeros(2 * width, np.uint8)) == 0


@pytest.mark.parametrize("failing", [0, 3, 19])
def test_a_failure_is_raised_once_and_costs_no_slot(failing: int) -> None:
    host, into = noise(20 * EACH), np.zeros(20 * EACH, np.uint8)
    with device(len(host)) as gpu:
        gpu.plan = lambda number: REFUSED if number >= failing else None
        raised = 0
        try:
            upload(gpu, BufferRegion(0, 1, 0), host)
        except HearthError as error:
            assert error.reason == "OUT_OF_BOUNDS"
            raised = 1
        settled(gpu)
        assert raised + len(gpu.deferred) == 1  # one error, even if many pieces fail
    with device(len(host)) as gpu:
        gpu.plan = lambda number: REFUSED if number >= failing else None
        with pytest.raises(HearthError, match="refused"):
            download(gpu, BufferRegion(0, 1, 0), into)
        settled(gpu)
        assert not gpu.deferred


def test_another_error_that_a_read_reports_is_not_lost() -> None:
    errors = [HearthError("first", reason="LAUNCH_FAILED"), HearthError("second", reason="LAUNCH_FAILED")]
    with device(2 * EACH) as gpu:
        gpu.plan = lambda number: errors[number] if gpu.both.wait(20) else REFUSED
        with pytest.raises(HearthError) as raised:
            download(gpu, BufferRegion(0, 1, 0), np.zeros(2 * EACH, np.uint8))
        settled(gpu)
        assert {raised.value.message, *(error.message for error in gpu.deferred)} == {"first", "second"}


def test_loss_during_a_copy_is_raised_once() -> None:
    lost = DeviceLostError("gone", reason="DEVICE_LOST")
    for transfer in (upload, download):
        with device(50 * EACH) as gpu:

            def plan(number: int, gpu: Device = gpu) -> HearthError | None:
                if number < 5:
                    return None
                gpu.session.error = lost
                return lost

            gpu.plan = plan
            with pytest.raises(DeviceLostError):
                transfer(gpu, BufferRegion(0, 1, 0), np.zeros(50 * EACH, np.uint8))
            settled(gpu)
            assert not gpu.deferred


def test_stalled_ring_leaves_the_rest_to_other_paths() -> None:
    host, gate = noise(20 * EACH), threading.Event()
    with device(len(host), slots=4, stall=0.05) as gpu:
        gpu.plan = lambda number: None if gate.wait(20) else REFUSED
        assert upload(gpu, BufferRegion(0, 1, 0), host) == 4 * EACH
        assert download(gpu, BufferRegion(0, 1, 0), np.zeros(len(host), np.uint8)) == 0
        gate.set()
        settled(gpu)
        np.testing.assert_array_equal(gpu.memory[: 4 * EACH], host[: 4 * EACH])


def test_all_commands_of_a_transfer_name_one_copy() -> None:
    host = noise(6 * EACH)
    with device(len(host)) as gpu:
        for size in (6 * EACH, 2 * EACH, EACH):
            assert upload(gpu, BufferRegion(0, 1, 0), host[:size]) == size
            assert download(gpu, BufferRegion(0, 1, 0), np.zeros(size, np.uint8)) == size
        settled(gpu)
        copies = [list(group) for _, group in itertools.groupby(gpu.splits)]
        assert [len(copy) for copy in copies] == [6, 6, 2, 2, 2]
        numbers, sizes = zip(*(copy[0] for copy in copies), strict=True)
        assert len(set(numbers)) == 5 and sizes == (6 * EACH, 6 * EACH, 2 * EACH, 2 * EACH, 0)


def test_cancelled_pieces_of_a_stalled_copy_are_reported_by_the_rest() -> None:
    gate, cancelled = threading.Event(), HearthError("cancelled", reason="CANCELLED")
    with device(20 * EACH, slots=4, stall=0.05) as gpu:
        gpu.plan = lambda number: cancelled if gate.wait(20) else REFUSED
        assert upload(gpu, BufferRegion(0, 1, 0), noise(20 * EACH)) == 4 * EACH
        gate.set()
        settled(gpu)
        assert not gpu.deferred


@pytest.mark.parametrize("size", [100, 5000], ids=["inline", "transfer"])
def test_the_rest_of_a_copy_names_the_same_copy(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """The rest of a split copy is sent inline or as a transfer."""
    sent: list[commands_pb2.Command] = []
    moved = shared.Moved(40, split=(9, size))
    monkeypatch.setattr(shared, "move", lambda *_, **__: moved)
    monkeypatch.setattr(plan, "MIN_SHARED_BYTES", 1)
    monkeypatch.setattr(plan, "should_use_ring", lambda *_: True)
    monkeypatch.setattr(router, "carry_upload", lambda *_: None)
    monkeypatch.setattr(router, "carry_download", lambda *_: None)
    limits = SimpleNamespace(max_inline_bytes=1000, max_batch_bytes=10_000)
    attachment: Any = SimpleNamespace(session=SimpleNamespace(limits=limits), submit=sent.append)
    rest = commands_pb2.Result(read=commands_pb2.ReadResult(data=bytes(size - 40), size=size - 40))
    reply = lone_reply()
    reply.set_result(rest)
    attachment.request = lambda command, reports=False: sent.append(command) or reply
    connection: Any = SimpleNamespace(raise_deferred=lambda *_: None, mint=lambda: 3)
    region, data = BufferRegion(0, 1, 0), memoryview(bytearray(size))
    router.write(connection, attachment, region, data)
    router.read(connection, attachment, region, data)
    write, read = sent[0].write, sent[1].read
    assert (write.split.number, write.split.size, write.offset) == (9, size, 40)
    assert (read.split.number, read.split.size, read.offset) == (9, size, 40)


def test_download_waits_for_its_requested_pieces() -> None:
    into, gate = np.zeros(20 * EACH, np.uint8), threading.Event()
    with device(len(into), slots=8, stall=0.02) as gpu:
        gpu.memory[:] = noise(len(into))
        gpu.plan = lambda number: None if gate.wait(20) else REFUSED
        threading.Timer(0.2, gate.set).start()
        assert download(gpu, BufferRegion(0, 1, 0), into) == len(into)
        np.testing.assert_array_equal(into, gpu.memory)


def test_a_download_leaves_slots_to_others() -> None:
    gate = threading.Event()
    with device(20 * EACH, slots=8) as gpu:
        gpu.plan = lambda number: None if gate.wait(20) else REFUSED
        reading = threading.Thread(target=download, args=(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8)))
        reading.start()
        assert upload(gpu, BufferRegion(0, 1, 0), noise(2 * EACH)) == 2 * EACH
        gate.set()
        reading.join(20)
        assert not reading.is_alive()


def test_timeout_ends_a_download_and_its_slots_are_returned_when_answered() -> None:
    gate = threading.Event()
    with device(20 * EACH) as gpu:
        gpu.plan = lambda number: None if gate.wait(20) else REFUSED
        with pytest.raises(TimeoutError, match=r"0\.05 s"):
            download(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8), timeout=0.05)
        assert gpu.ring.idle < gpu.ring.slot_count
        gate.set()
        settled(gpu)


def test_lost_connection_during_a_download_raises_no_error() -> None:
    """Each piece fails with a different message; all pieces take another route."""
    with device(20 * EACH, slots=6) as gpu:

        def lose(number: int) -> HearthError | None:
            gpu.alive = False
            assert number or gpu.both.wait(5)  # other pieces are in flight when the first one fails
            return HearthError(f"segment {number} is not shared", reason="INVALID_HANDLE")

        gpu.plan = lose
        assert download(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8)) == 0
        settled(gpu)
        assert gpu.commands > 1 and not gpu.deferred


def test_lost_connection_leaves_all_bytes_to_other_paths() -> None:
    missing = HearthError("no such segment", reason="INVALID_HANDLE")
    for transfer in (upload, download):
        with device(20 * EACH) as gpu:
            gpu.alive = False
            gpu.plan = lambda number: missing if number > 2 else None
            assert transfer(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8)) == 0
            settled(gpu)


@pytest.mark.parametrize("transfer", [upload, download])
@pytest.mark.parametrize("at", [1, 7])
def test_interrupted_copy_returns_its_slots(transfer: Any, at: int) -> None:
    calls = 0

    def interrupt(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt

    with device(20 * EACH) as gpu:
        # the exception may occur in a helper thread, which does not raise it here
        with contextlib.suppress(KeyboardInterrupt):
            transfer(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8), interrupt)
        settled(gpu)


class Interrupting(np.ndarray):
    """Array that raises KeyboardInterrupt at the n-th copy into it."""

    left = 3

    def __setitem__(self, index: Any, value: Any) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        super().__setitem__(index, value)


def test_interrupt_during_a_piece_returns_its_slot() -> None:
    with device(20 * EACH) as gpu:
        with pytest.raises(KeyboardInterrupt):
            download(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8).view(Interrupting))
        settled(gpu)


def test_an_error_of_the_callback_is_raised() -> None:
    def broken(done: int, total: int) -> None:
        raise ZeroDivisionError

    for transfer in (upload, download):
        with device(20 * EACH) as gpu:
            with pytest.raises(ZeroDivisionError):
                transfer(gpu, BufferRegion(0, 1, 0), np.zeros(20 * EACH, np.uint8), broken)
            settled(gpu)


def test_many_concurrent_transfers() -> None:
    drawn = random.Random(4)
    with device(64 * 30 * EACH, slots=5, stall=30.0) as gpu:
        failures: list[int] = []

        def work(number: int, size: int) -> None:
            host, into, region = noise(size), np.zeros(size, np.uint8), BufferRegion(0, 1, number * 30 * EACH)
            is_equal = upload(gpu, region, host) == download(gpu, region, into) == size
            if not is_equal or (host != into).any():
                failures.append(number)

        threads = [threading.Thread(target=work, args=(number, drawn.randrange(1, 30 * EACH))) for number in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures
        settled(gpu)
