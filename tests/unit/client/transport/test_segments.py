"""The client's end of a connection over which segments are shared with a device process."""

from __future__ import annotations

import gc
import itertools
import socket
import threading
from types import SimpleNamespace

import pytest

from hearth.transport import memory_segments, segments
from hearth.transport.memory_segments import Segment
from hearth_proto import frames
from hearth_proto.frames import FrameReader, Kind
from tests.support.client.interrupts import InterruptedLock

pytestmark = pytest.mark.skipif(not memory_segments.possible(), reason="needs memfd")


def test_ctrl_c_while_a_segment_is_collected_leaves_the_connection_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "threading", SimpleNamespace(Lock=InterruptedLock))
    client, device = socket.socketpair()
    released: list[int] = []

    def serve() -> None:
        reader = FrameReader()
        while data := device.recv(1 << 16):
            for frame in reader.feed(data):
                if frame.kind == Kind.RELEASE:
                    released.append(frame.id)
                else:
                    device.sendall(frames.encode(Kind.SEGMENT, id=frame.id))

    serving = threading.Thread(target=serve)
    serving.start()
    connection = segments.SegmentConnection(client, 1 << 30, itertools.count(1).__next__)
    try:
        for number in (1, 2, 3):
            segment = Segment(4096)
            assert connection.register(segment) == number
            del segment
        assert not connection.registered_bytes
    finally:
        connection.release()
        serving.join(20)
        device.close()
    assert released == [1, 2, 3]


def test_segment_that_is_collected_while_another_thread_registers_one_is_released() -> None:
    client, device = socket.socketpair()
    connection = segments.SegmentConnection(client, 1 << 30, itertools.count(1).__next__)
    reader, device_frames = FrameReader(), list[frames.Frame]()

    def next_frame() -> frames.Frame:
        while not device_frames:
            device_frames.extend(reader.feed(device.recv(1 << 16)))
        return device_frames.pop(0)

    def register(segment: Segment) -> threading.Thread:
        thread = threading.Thread(target=connection.register, args=(segment,))
        thread.start()
        return thread

    device.settimeout(20)
    first, second = Segment(4096), Segment(4096)
    try:
        registering = register(first)
        device.sendall(frames.encode(Kind.SEGMENT, id=next_frame().id))
        registering.join(20)
        registering = register(second)
        number = next_frame().id  # the thread holds the lock until it has the answer
        del first
        gc.collect()
        device.sendall(frames.encode(Kind.SEGMENT, id=number))
        registering.join(20)
        assert next_frame().kind == Kind.RELEASE
    finally:
        connection.release()
        device.close()
