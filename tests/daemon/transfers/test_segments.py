"""Memory that a client on this host shares with the device process: accepted segments, copies, and their release."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hearth_proto.frames import Kind, encode
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.raw import Raw, refused
from tests.support.daemon.segment_cases import ANY_SIZE, MIB, PART, Gate, gated, gone, mappings, noise
from tests.support.daemon.segments import SEALS, Shared, Sharing, open_bulk, read, sealed, write
from tests.support.daemon.tenants import tenant, tenants
from tests.support.folders import ROOT


@pytest.fixture(scope="module")
def warm(daemon: DaemonProcess) -> None:
    """Runs a kernel: the first one of a device process opens descriptors that stay."""
    with daemon.connect() as node:
        saxpy_works(node.device(0))


@pytest.fixture
def tidy(daemon: DaemonProcess, warm: None) -> Iterator[None]:
    """Checks that everything that the test shares is released afterwards: memory, mappings, descriptors."""
    gone(daemon)
    before = descriptors(daemon)
    yield
    gone(daemon)
    no_more_than(daemon, before)


def descriptors(daemon: DaemonProcess) -> Counter[str]:
    """Counts the device process's descriptors by kind."""
    kinds: Counter[str] = Counter()
    for entry in Path(f"/proc/{daemon.device_pid()}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds[str(entry.readlink()).partition(":[")[0]] += 1
    return kinds


def no_more_than(daemon: DaemonProcess, before: Counter[str]) -> None:
    """Waits until the device process has no more descriptors than before; the error names the kinds of additional
    ones."""
    try:
        wait_until(lambda: descriptors(daemon).total() <= before.total(), "the descriptors' end")
    except AssertionError as error:
        raise AssertionError(f"{error}: {descriptors(daemon) - before}") from error


def why(sharing: Sharing, command: c.Command) -> Refusal:
    """Returns the refusal of a command."""
    with pytest.raises(Refusal) as refusal:
        sharing.ask(command)
    return refusal.value


# ---- successful copies ----


@pytest.mark.parametrize("size", [1, 4096, ANY_SIZE, PART, 2 * PART + 4097])
def test_round_trip_of_every_size(tidy: None, sharing: Sharing, size: int) -> None:
    data = noise(size)
    memory = sharing.shared.share(1, size)
    buffer = sharing.allocate(size)
    memory[:] = data
    assert sharing.ask(write(buffer, 1, size)).WhichOneof("kind") == "done"
    memory[:] = bytes(size)  # the memory has been read
    result = sharing.ask(read(buffer, 1, size))
    assert result.read.size == size and not result.read.data
    assert memory[:] == data


def test_ranges_of_both_sides(tidy: None, sharing: Sharing) -> None:
    """Compared with the same copies on bytes, across the boundaries of the parts that are copied as one."""
    size = 2 * PART + 8192
    memory = sharing.shared.share(7, size)
    buffer = sharing.allocate(size)
    theirs, mine = bytearray(noise(size, 2)), bytearray(size)
    memory[:] = bytes(theirs)
    draw = random.Random(3)
    sharing.ask(c.Command(fill=c.Fill(buffer=buffer, size=size, pattern=b"\0")))
    for step in range(40):
        length = draw.choice([0, 1, 5, 4096, PART, draw.randrange(size)])
        at, offset = draw.randrange(size - length + 1), draw.randrange(size - length + 1)
        if step % 2:
            sharing.ask(write(buffer, 7, length, offset, at))
            mine[offset : offset + length] = theirs[at : at + length]
        else:
            assert sharing.ask(read(buffer, 7, length, offset, at)).read.size == length
            theirs[at : at + length] = mine[offset : offset + length]
    assert memory[:] == bytes(theirs)
    sharing.ask(read(buffer, 7, size))
    assert memory[:] == bytes(mine)


@pytest.mark.parametrize(("width", "rows", "pitch", "at"), [
    (5, 7, 16, 0), (4096, 300, 8192, 4095), (1, 1000, 3, PART - 500), (3 * MIB, 13, 3 * MIB + 1, PART - MIB - 1),
    (16, 4, 16, 1), (0, 5, 8, 3),
])  # fmt: skip
def test_rows(tidy: None, sharing: Sharing, width: int, rows: int, pitch: int, at: int) -> None:
    size, extent = width * rows, (rows - 1) * pitch + width
    memory = sharing.shared.share(1, at + 2 * size + 1)
    data = noise(size)
    memory[at : at + size] = data
    buffer = sharing.allocate(extent + 3)
    sharing.ask(c.Command(fill=c.Fill(buffer=buffer, size=extent + 3, pattern=b"\x55")))
    shape = c.Rows(width=width, rows=rows, pitch=pitch)
    sharing.ask(write(buffer, 1, size, 3, at, rows=shape))
    expected = np.full(extent + 3, 0x55, np.uint8)
    for row in range(rows):
        expected[3 + row * pitch :][:width] = np.frombuffer(data, np.uint8)[row * width :][:width]
    assert sharing.raw.read(buffer, extent + 3) == expected.tobytes()
    sharing.ask(read(buffer, 1, size, 3, at + size, rows=shape))
    assert memory[at + size : at + 2 * size] == data


def test_one_way_writes_are_in_the_order_of_their_stream(tidy: None, sharing: Sharing) -> None:
    """The answer to a later read implies that all earlier writes have read their memory."""
    memory = sharing.shared.share(1, 64 * 4096)
    buffer = sharing.allocate(4096)
    for index in range(64):
        memory[index * 4096 : (index + 1) * 4096] = bytes([index]) * 4096
    sharing.stream.batch(*(write(buffer, 1, 4096, at=index * 4096) for index in range(64)))
    result = sharing.ask(c.Command(read=c.Read(buffer=buffer, size=4096)))
    assert result.read.data == bytes([63]) * 4096


def test_answer_is_sent_after_the_bytes_have_been_read(tidy: None, sharing: Sharing) -> None:
    memory = sharing.shared.share(1, 4096)
    buffer = sharing.allocate(4096)
    stream = sharing.stream
    with gated(sharing) as gate:
        memory[:] = b"1" * 4096
        command = write(buffer, 1, 4096)
        command.stream, command.request = gate.held, 1000
        stream.batch(command)
        assert stream.failures() == []  # the command, and everything before it, has been processed
        memory[:] = b"2" * 4096  # a race that clients should avoid
        gate.open()
        seen = []
        while (response := stream.receive()).result.request != 1000:
            seen.append(response.WhichOneof("kind"))
        assert set(seen) <= {"ack"}
    assert sharing.raw.read(buffer, 4096) == b"2" * 4096


def test_single_calls_cannot_name_segments(tidy: None, sharing: Sharing) -> None:
    """Single calls contain their bytes."""
    sharing.shared.share(1, 4096)
    buffer = sharing.allocate(4096)
    shared = c.Shared(segment=1)
    for rpc, command in (
        ("Write", c.Write(buffer=buffer, size=4096, shared=shared)),
        ("Read", c.Read(buffer=buffer, size=4096, shared=shared)),
    ):
        refusal = refused(sharing.raw.call, rpc, command)
        assert refusal.reason == Reason.INVALID_ARGUMENT and "Execute" in refusal.fix


# ---- invalid commands ----


def test_commands_that_are_refused(sharing: Sharing, unharmed: None) -> None:
    size = 8192
    sharing.shared.share(1, size)
    buffer = sharing.allocate(size)
    most = (1 << 64) - 1
    both = [
        (write(buffer, 2, size), Reason.INVALID_HANDLE),
        (write(buffer, 0, size), Reason.INVALID_HANDLE),
        (read(buffer, 2, size), Reason.INVALID_HANDLE),
        (read(buffer, most, size), Reason.INVALID_HANDLE),
        (write(buffer, 1, size, at=1), Reason.OUT_OF_BOUNDS),
        (write(buffer, 1, size + 1), Reason.OUT_OF_BOUNDS),
        (write(buffer, 1, 1, at=size), Reason.OUT_OF_BOUNDS),
        (write(buffer, 1, 1, at=most), Reason.OUT_OF_BOUNDS),
        (write(buffer, 1, most, at=most), Reason.OUT_OF_BOUNDS),
        (write(buffer, 1, 16, offset=most), Reason.OUT_OF_BOUNDS),
        (read(buffer, 1, size, at=most), Reason.OUT_OF_BOUNDS),
        (read(buffer, 1, most), Reason.OUT_OF_BOUNDS),
        (read(buffer, 1, 16, offset=size), Reason.OUT_OF_BOUNDS),
        (write(77, 1, size), Reason.INVALID_HANDLE),
        (write(buffer, 1, size, data=b"x"), Reason.INVALID_ARGUMENT),
        (write(buffer, 1, size, transfer=5), Reason.INVALID_ARGUMENT),
        (read(buffer, 1, size, transfer=5), Reason.INVALID_ARGUMENT),
        (write(buffer, 1, 16, rows=c.Rows(width=3, rows=5, pitch=4)), Reason.INVALID_ARGUMENT),
        (write(buffer, 1, 16, rows=c.Rows(width=8, rows=2, pitch=4)), Reason.INVALID_ARGUMENT),
    ]
    for command, reason in both:
        refusal = why(sharing, command)
        assert refusal.reason == reason and refusal.fix, (command, refusal)
    sharing.stream.batch(read(buffer, 1, size))
    [failure] = sharing.stream.failures()
    assert from_status(failure.status).reason == Reason.INVALID_ARGUMENT  # a read needs a request number


def test_one_way_errors_are_raised_once_and_invalidate_their_buffers(sharing: Sharing, unharmed: None) -> None:
    buffer = sharing.allocate(4096)
    sharing.shared.share(1, 4096)
    other = sharing.raw.mint()
    sharing.stream.batch(c.Command(create_stream=c.CreateStream(stream=other)), write(buffer, 9, 4096))
    elsewhere = read(buffer, 1, 4096)
    elsewhere.stream = other
    assert why(sharing, elsewhere).reason == Reason.INVALID_HANDLE, "it was never written"
    [failure] = sharing.stream.failures()
    assert from_status(failure.status).reason == Reason.INVALID_HANDLE
    assert sharing.stream.failures() == []
    sharing.ask(write(buffer, 1, 4096))
    assert sharing.ask(elsewhere).read.size == 4096


def test_segments_of_another_session_are_refused(daemon: DaemonProcess, sharing: Sharing, unharmed: None) -> None:
    sharing.shared.share(1, 4096)
    with Sharing(daemon.unix) as other:
        buffer = other.allocate(4096)
        assert why(other, write(buffer, 1, 4096)).reason == Reason.INVALID_HANDLE
        other.shared.share(1, 8192)[:] = b"b" * 8192
        other.ask(write(buffer, 1, 4096, at=4096))
        assert other.raw.read(buffer, 4096) == b"b" * 4096


def test_commands_on_segments_are_recorded(sharing: Sharing, unharmed: None) -> None:
    """Each launch of the graph copies again, also after the client has released the segment."""
    memory = sharing.shared.share(1, 8192)
    buffer, graph = sharing.allocate(4096), sharing.raw.mint()
    sharing.ask(c.Command(begin_capture=c.BeginCapture(graph=graph)))
    for command in (write(buffer, 1, 4096), read(buffer, 1, 4096, at=4096)):
        sharing.ask(command)
    for command in (c.Command(write=c.Write(buffer=buffer, data=b"1")), c.Command(read=c.Read(buffer=buffer, size=1))):
        assert why(sharing, command).reason == Reason.CAPTURE_INVALID
    sharing.ask(c.Command(end_capture=c.EndCapture(graph=graph)))
    launch = c.Command(launch_graph=c.LaunchGraph(graph=graph, count=1))
    for value in (b"x", b"y"):
        memory[:4096] = value * 4096
        sharing.ask(launch)
        assert sharing.raw.read(buffer, 4096) == value * 4096 == bytes(memory[4096:])
    sharing.ask(write(buffer, 1, 4096, at=4096))
    sharing.ask(launch)
    assert sharing.raw.read(buffer, 4096) == b"y" * 4096


@pytest.mark.parametrize("wrong", ["range", "number"])
def test_a_wrong_place_fails_the_capture(sharing: Sharing, unharmed: None, wrong: str) -> None:
    sharing.shared.share(1, 4096)
    buffer, graph = sharing.allocate(4096), sharing.raw.mint()
    sharing.ask(c.Command(begin_capture=c.BeginCapture(graph=graph)))
    expected = Reason.OUT_OF_BOUNDS if wrong == "range" else Reason.INVALID_HANDLE
    command = write(buffer, 1, 4096, at=1) if wrong == "range" else read(buffer, 2, 4096)
    assert why(sharing, command).reason == expected
    refusal = why(sharing, c.Command(end_capture=c.EndCapture(graph=graph)))
    assert refusal.reason == Reason.CAPTURE_INVALID and refusal.details["cause"] == expected


# ---- invalid segments ----


def test_unsealed_or_non_memfd_descriptor_is_refused(daemon: DaemonProcess, sharing: Sharing, unharmed: None) -> None:
    shared = sharing.shared
    before = descriptors(daemon)
    pipe = os.pipe()
    plain = socket.socketpair()
    ids = itertools.count(1)
    with tempfile.TemporaryFile() as file, tempfile.TemporaryFile(dir="/dev/shm") as in_memory:
        file.truncate(4096)
        in_memory.truncate(4096)
        wrong = {
            "not a memfd": [pipe[0], pipe[1], plain[0].detach(), plain[1].detach(), os.dup(file.fileno())],
            "seals": [os.dup(in_memory.fileno()), sealed(4096, 0), sealed(4096, fcntl.F_SEAL_SHRINK),
                      sealed(4096, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)],
            "against writing": [sealed(4096, SEALS | fcntl.F_SEAL_WRITE)],
        }  # fmt: skip
        for words, files in wrong.items():
            for each in files:
                refusal = shared.refuse(next(ids), 4096, each)
                assert refusal.reason == Reason.INVALID_ARGUMENT and words in refusal.message, (words, refusal)
    readable = sealed(4096)
    again = os.open(f"/proc/self/fd/{readable}", os.O_RDONLY)
    os.close(readable)
    assert "mapped" in shared.refuse(next(ids), 4096, again).message
    no_more_than(daemon, before)
    assert daemon.gauge("segments") == 0
    shared.share(next(ids), 4096)


@pytest.mark.parametrize("size", [0, -1, 4095, 4097, 1 << 63, 1 << 70, 4096.0, True, None, "4096", [4096], {}])
def test_a_size_that_is_another(sharing: Sharing, unharmed: None, size: object) -> None:
    refusal = sharing.shared.refuse(1, size, sealed(4096))
    assert refusal.reason == Reason.INVALID_ARGUMENT and "4096" in refusal.message
    sharing.shared.share(1, 4096)  # its number is free


def test_an_empty_memfd(sharing: Sharing, unharmed: None) -> None:
    assert sharing.shared.refuse(1, 0, sealed(0)).reason == Reason.INVALID_ARGUMENT


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"3", b'{"length":3}', b"\xff", b"[" * 900])
def test_a_payload_that_cannot_be_read(sharing: Sharing, unharmed: None, payload: bytes) -> None:
    file = sealed(4096)
    sharing.shared.send(encode(Kind.SEGMENT, payload, id=1), [file])
    os.close(file)
    assert sharing.shared.refused(1).reason == Reason.MALFORMED_MESSAGE
    sharing.shared.share(1, 4096)


def test_descriptors_that_are_missing_or_too_many(daemon: DaemonProcess, sharing: Sharing, unharmed: None) -> None:
    shared = sharing.shared
    before = descriptors(daemon)
    assert "without a descriptor" in shared.refuse(1, 4096).message
    pipe = os.pipe()
    files = [sealed(4096), sealed(4096), *pipe]
    shared.announce(1, 4096, files)  # only the first descriptor is used
    assert shared.next().kind == Kind.SEGMENT
    shared.send(encode(Kind.RELEASE, id=1), files)  # none is used
    shared.announce(2, 4096, [*files, *files, *files])  # more than fit into one message
    assert shared.next().kind == Kind.SEGMENT
    for each in files:
        os.close(each)
    assert "without a descriptor" in shared.refuse(3, 4096).message
    no_more_than(daemon, before)
    wait_until(lambda: daemon.gauge("segments") == 1, "the release of a segment")
    shared.share(3, 4096)


def test_frames_cut_anywhere(daemon: DaemonProcess, sharing: Sharing, unharmed: None) -> None:
    """The descriptor arrives with the first byte of a frame, wherever the frame is cut later."""
    shared = sharing.shared
    for ident in range(1, 20):
        file = sealed(4096 * ident)
        frame = encode(Kind.SEGMENT, b'{"size": %d}' % (4096 * ident), id=ident)
        shared.send(frame[:1], [file])
        shared.send(frame[1:ident])
        shared.send(frame[ident:] if ident > 1 else frame[1:])
        os.close(file)
        assert shared.next().id == ident
    files = [sealed(4096 * (ident + 1)) for ident in range(20, 60)]
    for ident, file in zip(range(20, 60), files, strict=True):  # without waiting for answers
        shared.announce(ident, 4096 * (ident + 1), [file])
        os.close(file)
    assert {shared.next().id for _ in range(40)} == set(range(20, 60))
    buffer = sharing.allocate(60 * 4096)
    for ident in range(20, 60):
        sharing.ask(write(buffer, ident, 4096 * (ident + 1)))


def test_numbers_that_are_taken(sharing: Sharing, unharmed: None) -> None:
    shared = sharing.shared
    memory = shared.share(5, 4096)
    memory[:] = b"5" * 4096
    assert shared.refuse(5, 4096, sealed(4096)).reason == Reason.HANDLE_IN_USE
    assert shared.refuse(0, 4096, sealed(4096)).reason == Reason.INVALID_ARGUMENT
    buffer = sharing.allocate(4096)
    sharing.ask(write(buffer, 5, 4096))
    assert sharing.raw.read(buffer, 4096) == b"5" * 4096, "the first registration remains"
    shared.release(5)
    wait_until(lambda: _refused_handle(sharing, buffer, 5), "the release")
    shared.share(5, 4096)[:] = b"6" * 4096
    sharing.ask(write(buffer, 5, 4096))
    assert sharing.raw.read(buffer, 4096) == b"6" * 4096


def _refused_handle(sharing: Sharing, buffer: int, segment: int) -> bool:
    with contextlib.suppress(Refusal):
        sharing.ask(write(buffer, segment, 1))
        return False
    return True


def test_number_and_size_of_segments_are_bounded(start_daemon: StartDaemon) -> None:
    config, tokens = tenants("free", tenant("bounded", quotas={"pinned_bytes": "1MiB"}))
    daemon = start_daemon(lanes={"segment_bytes": "4MiB"}, devices={"isolation": "shared"}, **config)
    with Sharing(daemon.unix, tokens["free"]) as first, Sharing(daemon.unix, tokens["bounded"]) as second:
        assert first.shared.offer.max_segment_bytes == 4 * MIB
        assert second.shared.offer.max_segment_bytes == MIB
        for ident in range(1, 257):
            first.shared.share(ident, 4096)
        refusal = first.shared.refuse(257, 4096, sealed(4096))
        assert refusal.reason == Reason.QUOTA_EXCEEDED and "256" in refusal.message
        refusal = second.shared.refuse(1, MIB + 1, sealed(MIB + 1))
        assert refusal.reason == Reason.QUOTA_EXCEEDED and str(MIB) in refusal.message
        second.shared.share(1, MIB)
        assert second.shared.refuse(2, 1, sealed(1)).reason == Reason.QUOTA_EXCEEDED
        for ident in range(1, 257):
            first.shared.release(ident)
        wait_until(lambda: daemon.gauge("segment_bytes") == MIB, "the release of all")
        refusal = first.shared.refuse(1, 3 * MIB + 1, sealed(3 * MIB + 1))
        assert refusal.reason == Reason.QUOTA_EXCEEDED and refusal.details["held"] == str(MIB)
        first.shared.share(1, 3 * MIB)
    wait_until(lambda: daemon.gauge("segments") == 0, "the end of all")
    assert mappings(daemon) == 0
    assert 'hearth_segment_bytes{device="0",tenant=' in daemon.get("/metrics", daemon.observer).body


def test_rights_for_segments(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(
        tenant("reader", rights=["allocate", "read"]),
        tenant("writer", rights=["allocate", "write"]),
        tenant("launcher", rights=["launch"]),
    )
    daemon = start_daemon(**config)
    for who, command in (("reader", write), ("writer", read)):
        with Sharing(daemon.unix, tokens[who]) as sharing:
            sharing.shared.share(1, 4096)
            assert why(sharing, command(sharing.allocate(4096), 1, 4096)).reason == Reason.PERMISSION_DENIED
    with Raw(daemon.unix, tokens["launcher"]) as raw, raw.execute() as stream:
        assert refused(open_bulk, raw, stream.attached.generation).reason == Reason.PERMISSION_DENIED


@pytest.mark.parametrize("data", [
    encode(Kind.BATCH, b"x", id=1), encode(Kind.SEGMENT, b"x" * 2000, id=1), encode(Kind.RELEASE, id=1, channel=1),
    encode(Kind.RELEASE, b"x", id=1), encode(Kind.LIVE), b"\xff" * 40, encode(Kind.SEGMENT, b"{}", id=1, flags=1),
])  # fmt: skip
def test_invalid_frames_close_the_connection(
    daemon: DaemonProcess, unharmed: None, tidy: None, sharing: Sharing, data: bytes
) -> None:
    """The error affects only the connection and the memory shared over it."""
    sharing.shared.share(1, 4096)
    buffer = sharing.allocate(4096)
    sharing.shared.send(data)
    assert sharing.shared.over()
    assert why(sharing, write(buffer, 1, 4096)).reason == Reason.INVALID_HANDLE
    with Shared(sharing.raw, sharing.stream.attached.generation) as again:
        again.share(1, 4096)
        sharing.ask(write(buffer, 1, 4096))


def test_a_client_that_reads_no_answers(daemon: DaemonProcess, unharmed: None, tidy: None, sharing: Sharing) -> None:
    sharing.shared.end.settimeout(20)
    with pytest.raises(ConnectionError):
        while True:
            sharing.shared.send(encode(Kind.SEGMENT, b"{}", id=9) * 100)


# ---- the end of segments ----


def test_a_release_in_flight(daemon: DaemonProcess, tidy: None, sharing: Sharing) -> None:
    """No later command can name the segment; commands in progress complete first."""
    size = 3 * MIB
    data = noise(size)
    sharing.shared.share(1, size)[:] = data
    buffer, other = sharing.allocate(size), sharing.allocate(1)
    stream = sharing.stream
    with gated(sharing) as gate:
        command = write(buffer, 1, size)
        command.stream, command.request = gate.held, 1000
        stream.batch(command)
        assert stream.failures() == []
        sharing.shared.release(1)
        # A write to another buffer, which would not wait if it preceded the release.
        wait_until(lambda: _refused_handle(sharing, other, 1), "the release")
        assert (daemon.gauge("segments"), mappings(daemon)) == (1, 1)
        gate.open()
        while (response := stream.receive()).result.request != 1000:
            pass
        assert not response.result.HasField("error")
        wait_until(lambda: daemon.gauge("segments") == 0, "its end")
    assert sharing.raw.read(buffer, 16) == data[:16]


@pytest.mark.parametrize("how", ["connection", "session"])
def test_segments_end_with_connection_or_session(daemon: DaemonProcess, tidy: None, how: str) -> None:
    sharing = Sharing(daemon.unix)
    for ident in range(1, 9):
        sharing.shared.share(ident, 4096 * ident)
    buffer = sharing.allocate(4096)
    assert (daemon.gauge("segments"), mappings(daemon)) == (8, 8)
    if how == "connection":
        sharing.shared.end.close()
        wait_until(lambda: daemon.gauge("segments") == 0, "their end")
        assert why(sharing, write(buffer, 1, 4096)).reason == Reason.INVALID_HANDLE
        sharing.close()
    else:
        sharing.raw.__exit__(None, None, None)
        assert sharing.shared.over()
        sharing.shared.close()


def test_a_session_with_commands_that_wait(daemon: DaemonProcess, tidy: None) -> None:
    """More commands than the device accepts: some of them never run, and no call waits for them."""
    sharing = Sharing(daemon.unix)
    sharing.shared.share(1, MIB)
    buffer = sharing.allocate(MIB)
    gate = Gate(sharing)
    commands = [write(buffer, 1, MIB) for _ in range(3000)]
    for command in commands:
        command.stream = gate.held
    sharing.stream.batch(*commands)
    assert sharing.stream.failures() == []
    gate.open()
    gate.opened()
    sharing.close()


CLIENT = """
import sys, time
sys.path.insert(0, sys.argv[2])
from tests.support.daemon.segments import Sharing, write, read
sharing = Sharing(sys.argv[1])
size = 256 << 20
memory = sharing.shared.share(1, size)
buffer = sharing.allocate(size)
print("ready", flush=True)
while True:
    sharing.stream.batch(*(write(buffer, 1, size) for _ in range(4)))
    sharing.ask(read(buffer, 1, size))
    print("round", flush=True)
"""


def test_client_killed_during_a_copy(daemon: DaemonProcess, unharmed: None, tidy: None) -> None:
    root = str(ROOT)
    for delay in (0.0, 0.02, 0.1):
        child = subprocess.Popen(
            [sys.executable, "-c", CLIENT, daemon.unix, root], stdout=subprocess.PIPE, env=environment(), text=True
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(delay)
            child.send_signal(signal.SIGKILL)
        wait_until(lambda: daemon.gauge("segments") == 0, "the release of its segments")


def test_a_device_that_is_lost(lossy: DaemonProcess) -> None:
    """The connections of a device process end with it; the next process has other connections, with its own
    generation."""
    with Raw(lossy.unix) as raw:
        stream = raw.execute()
        generation = stream.attached.generation
        shared = Shared(raw, generation)
        shared.share(1, 4096)
        os.kill(lossy.device_pid(), signal.SIGKILL)
        assert shared.over()
        shared.close()
        wait_until(lambda: lossy.generation() > generation, "the next process")
        wait_until(lambda: lossy.status()["devices"][0]["pid"] > 0, "the next process")
        assert refused(open_bulk, raw, generation).reason == Reason.DEVICE_LOST
        with raw.execute() as stream, Shared(raw, stream.attached.generation) as again:
            buffer = raw.buffer(bytes(4096))
            result = stream.ask(write(buffer, 1, 4096))
            assert from_status(result.error).reason == Reason.INVALID_HANDLE
            again.share(1, 4096)[:] = b"x" * 4096
            assert not stream.ask(write(buffer, 1, 4096)).HasField("error")
            assert raw.read(buffer, 4096) == b"x" * 4096


def test_no_more_connections_than_a_session_needs(daemon: DaemonProcess, sharing: Sharing, unharmed: None) -> None:
    generation = sharing.stream.attached.generation
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(Shared(sharing.raw, generation))
        with pytest.raises(EOFError):
            Shared(sharing.raw, generation)
    sharing.shared.share(1, 4096)


def test_concurrent_clients_get_their_own_bytes(daemon: DaemonProcess, tidy: None) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def client(seed: int) -> bool:
        with Sharing(daemon.unix) as sharing:
            size = 40 * MIB
            data = noise(size, seed)
            memory = sharing.shared.share(1, size)
            buffer = sharing.allocate(size)
            for _ in range(3):
                memory[:] = data
                sharing.stream.batch(write(buffer, 1, size))
                sharing.ask(c.Command(sync=c.Sync()))
                memory[:] = bytes(size)
                sharing.ask(read(buffer, 1, size))
                if memory[:] != data:
                    return False
            return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(client, range(3)))
