"""Transfers that are placed in memory shared by the client: frame by frame, in any order, and refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hearth_proto.frames import PLACE, Frame, Kind, encode
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.segment_cases import ANY_SIZE, MIB, PART, gated, gone, noise
from tests.support.daemon.segments import Shared, Sharing

UP, DOWN = Kind.UPLOAD, Kind.DOWNLOAD


@pytest.fixture(autouse=True)
def tidy(daemon: DaemonProcess) -> Iterator[None]:
    """Checks that the test leaves no shared memory."""
    yield
    gone(daemon)


def command(
    kind: Kind, buffer: int, transfer: int, size: int, *, stream: int = 0, rows: c.Rows | None = None
) -> c.Command:
    what = {"buffer": buffer, "transfer": transfer, "size": size, "rows": rows}
    if kind == UP:
        return c.Command(stream=stream, write=c.Write(**what))  # type: ignore[arg-type]
    return c.Command(stream=stream, read=c.Read(**what))  # type: ignore[arg-type]


def ask(sharing: Sharing, given: c.Command) -> int:
    """Sends the command; returns the number of its request."""
    given.request = sharing.raw.mint() + (1 << 40)
    sharing.stream.batch(given)
    return given.request


def answer(sharing: Sharing, request: int) -> c.Result:
    """Returns the next answer, which must belong to `request`: answers arrive in the order of the requests here. Raises
    its refusal."""
    while (response := sharing.stream.receive()).WhichOneof("kind") != "result":
        pass
    result = response.result
    assert result.request == request
    if result.HasField("error"):
        raise from_status(result.error)
    return result


def send(shared: Shared, kind: Kind, transfer: int, segment: int, size: int, at: int = 0) -> None:
    shared.send(encode(kind, PLACE.pack(segment, at, size), id=transfer))


def place(shared: Shared, kind: Kind, transfer: int, segment: int, size: int, at: int = 0) -> None:
    send(shared, kind, transfer, segment, size, at)
    assert shared.next() == Frame(kind, 0, 0, transfer, b"")


def refused(shared: Shared, kind: Kind, transfer: int, segment: int, size: int, at: int = 0) -> Refusal:
    send(shared, kind, transfer, segment, size, at)
    return shared.refused(transfer)


@pytest.mark.parametrize("first", ["command", "place"])
@pytest.mark.parametrize("size", [1, ANY_SIZE, PART + 4097])
def test_round_trip_with_command_and_place_in_either_order(sharing: Sharing, size: int, first: str) -> None:
    shared, buffer, data, at = sharing.shared, sharing.allocate(size), noise(size), 777
    memory = shared.share(1, size + 2 * at)
    memory[at : at + size] = data
    for kind, transfer in ((UP, 11), (DOWN, 12)):
        if first == "command":
            request = ask(sharing, command(kind, buffer, transfer, size))
            place(shared, kind, transfer, 1, size, at)
        else:
            place(shared, kind, transfer, 1, size, at)
            request = ask(sharing, command(kind, buffer, transfer, size))
        result = answer(sharing, request)
        if kind == UP:
            memory[:] = bytes(size + 2 * at)  # the memory has been read
        else:
            assert result.read.size == size
    assert memory[:] == bytes(at) + data + bytes(at)


def test_rows(sharing: Sharing) -> None:
    rows, width, pitch = 500, 3001, 4096
    memory, buffer = sharing.shared.share(1, rows * width), sharing.allocate(rows * pitch)
    data = noise(rows * width)
    memory[:] = data
    layout = c.Rows(width=width, rows=rows, pitch=pitch)
    for kind, transfer in ((UP, 1), (DOWN, 2)):
        request = ask(sharing, command(kind, buffer, transfer, rows * width, rows=layout))
        place(sharing.shared, kind, transfer, 1, rows * width)
        answer(sharing, request)
        memory[:] = bytes(len(memory)) if kind == UP else memory[:]
    assert memory[:] == data


def test_answer_is_sent_after_the_bytes_have_been_read(sharing: Sharing) -> None:
    """The memory is not released before either, although its client has released it and its connection has ended."""
    size, buffer = ANY_SIZE, sharing.allocate(ANY_SIZE)
    memory, data = sharing.shared.share(1, size), noise(size)
    memory[:] = data
    with gated(sharing) as gate:
        request = ask(sharing, command(UP, buffer, 5, size, stream=gate.held))
        place(sharing.shared, UP, 5, 1, size)
        assert sharing.stream.failures() == []  # would receive the answer if it had been sent
        again = Shared(sharing.raw, sharing.stream.attached.generation)
        sharing.shared.end.close()  # the mapping in the test process stays
        gate.open()
        answer(sharing, request)
    sharing.shared.close()
    sharing.shared = again
    back = again.share(2, size)
    request = ask(sharing, command(DOWN, buffer, 6, size))
    place(again, DOWN, 6, 2, size)
    answer(sharing, request)
    assert back[:] == data


def test_invalid_ranges_and_numbers_are_refused(sharing: Sharing, unharmed: None) -> None:
    shared, buffer = sharing.shared, sharing.allocate(4096)
    shared.share(1, 4096)
    assert refused(shared, UP, 20, 7, 4096).reason == Reason.INVALID_HANDLE
    assert refused(shared, UP, 20, 1, 4097).reason == Reason.OUT_OF_BOUNDS
    assert refused(shared, DOWN, 20, 1, 1, 4096).reason == Reason.OUT_OF_BOUNDS
    assert refused(shared, DOWN, 20, 1, 2**63, 2**63).reason == Reason.OUT_OF_BOUNDS
    place(shared, UP, 21, 1, 4096)
    assert refused(shared, UP, 21, 1, 4096).reason == Reason.HANDLE_IN_USE
    assert refused(shared, DOWN, 21, 1, 4096).reason == Reason.HANDLE_IN_USE
    answer(sharing, ask(sharing, command(UP, buffer, 21, 4096)))
    assert refused(shared, UP, 21, 1, 4096).reason == Reason.TRANSFER_ABORTED
    first = [device_pb2.UploadRequest(session_token=sharing.raw.token, transfer=22, data=bytes(8))]
    sharing.raw.device.Upload(iter(first), timeout=20)
    assert refused(shared, UP, 22, 1, 4096).reason == Reason.HANDLE_IN_USE  # bytes have arrived over Upload
    for kind, transfer in ((UP, 30), (DOWN, 31)):  # the size differs from that of the command
        request = ask(sharing, command(kind, buffer, transfer, 4096))
        place(shared, kind, transfer, 1, 4095)
        with pytest.raises(Refusal) as raised:
            answer(sharing, request)
        assert raised.value.reason == Reason.OUT_OF_BOUNDS and raised.value.details["placed"] == "4095"


@pytest.mark.parametrize("data", [
    encode(UP, b"", id=1), encode(DOWN, b"x" * 23, id=1), encode(UP, b"x" * 25, id=1),
    encode(UP, PLACE.pack(1, 0, 1), id=1, flags=1), encode(DOWN, PLACE.pack(1, 0, 1), id=1, channel=1),
])  # fmt: skip
def test_invalid_places_are_refused(sharing: Sharing, unharmed: None, data: bytes) -> None:
    sharing.shared.share(1, 4096)
    sharing.shared.send(data)
    assert sharing.shared.over()


@pytest.mark.parametrize("kind", [UP, DOWN])
def test_cancelled_transfer_does_not_block_later_commands(sharing: Sharing, kind: Kind) -> None:
    """The transfer is cancelled before its command runs; later commands continue."""
    raw, buffer = sharing.raw, sharing.allocate(MIB)
    sharing.shared.share(1, MIB)
    with gated(sharing) as gate:
        wait = c.Command(stream=gate.held, write=c.Write(buffer=buffer, transfer=100, size=MIB))
        first = ask(sharing, wait)  # its data never arrives, so the next command must wait
        request = ask(sharing, command(kind, buffer, 40, MIB, stream=gate.held))
        place(sharing.shared, kind, 40, 1, MIB)
        assert sharing.stream.failures() == []  # both commands have been processed
        for transfer in (40, 100):
            raw.device.TransferStatus(
                device_pb2.TransferStatusRequest(session_token=raw.token, transfer=transfer, give_up=True), timeout=20
            )
        gate.open()
        for each in (first, request):
            with pytest.raises(Refusal) as raised:
                answer(sharing, each)
            assert raised.value.reason in (Reason.TRANSFER_ABORTED, Reason.DEPENDENCY_FAILED)
    sharing.ask(c.Command(sync=c.Sync()))


def test_session_that_ends_with_unused_places(daemon: DaemonProcess, sharing: Sharing) -> None:
    sharing.shared.share(1, 64 * MIB)
    for transfer in range(1, 65):
        place(sharing.shared, (UP, DOWN)[transfer % 2], transfer, 1, MIB)
    assert daemon.gauge("segment_bytes") == 64 * MIB
    sharing.close()
    gone(daemon)


def test_number_of_waiting_places_is_bounded(sharing: Sharing, unharmed: None) -> None:
    sharing.shared.share(1, 4096)
    for transfer in range(1, 1025):
        place(sharing.shared, UP, transfer, 1, 1)
    assert refused(sharing.shared, UP, 2000, 1, 1).reason == Reason.QUOTA_EXCEEDED


def test_bytes_sent_over_another_path_after_a_place(sharing: Sharing) -> None:
    """The client has no confirmation that they were placed, and sends them: the shared memory is ignored."""
    raw, buffer, size = sharing.raw, sharing.allocate(MIB), MIB
    memory, data = sharing.shared.share(1, size), noise(size)
    memory[:] = noise(size, 9)
    with gated(sharing) as gate:
        blocked = ask(sharing, c.Command(stream=gate.held, write=c.Write(buffer=buffer, transfer=50, size=size)))
        request = ask(sharing, command(UP, buffer, 51, size, stream=gate.held))
        place(sharing.shared, UP, 51, 1, size)
        requests = [device_pb2.UploadRequest(session_token=raw.token, transfer=51, data=data)]
        assert raw.device.Upload(iter(requests), timeout=60).received == size  # they are in transit to the device
        first = [device_pb2.UploadRequest(session_token=raw.token, transfer=50, data=bytes(size))]
        raw.device.Upload(iter(first), timeout=60)
        gate.open()
        for each in (blocked, request):
            answer(sharing, each)
    assert raw.read(buffer, size) == data
    np.testing.assert_array_equal(np.frombuffer(memory, np.uint8), np.frombuffer(noise(size, 9), np.uint8))


def test_a_dispatch(sharing: Sharing) -> None:
    raw, n = sharing.raw, 4 * MIB
    code = (
        'extern "C" __global__ void twice(const int* x, int* y, int n) {'
        " int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }"
    )
    function = raw.function(code, "twice")
    memory = sharing.shared.share(1, 2 * 4 * n)
    x = np.frombuffer(memory, np.int32)[:n]
    x[:] = np.arange(n)
    B = c.Binding
    given = c.Command(dispatch=c.Dispatch(function=function, grid=c.Dim3(x=n // 256), block=c.Dim3(x=256), bindings=[
        B(role=B.ROLE_INPUT, size=4 * n, upload=61), B(role=B.ROLE_OUTPUT, size=4 * n, download=62),
        B(role=B.ROLE_VALUE, value=c.Argument(int32=n)),
    ]))  # fmt: skip
    request = ask(sharing, given)
    place(sharing.shared, UP, 61, 1, 4 * n)
    place(sharing.shared, DOWN, 62, 1, 4 * n, 4 * n)
    result = answer(sharing, request).dispatch
    assert list(result.sizes) == [4 * n] and not result.outputs[0]
    np.testing.assert_array_equal(np.frombuffer(memory, np.int32)[n:], 2 * np.arange(n, dtype=np.int32))
    del x
