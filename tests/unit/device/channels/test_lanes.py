"""Lanes of one device process; the test takes the place of its front and its clients."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import select
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth_proto import descriptors
from hearth_proto.frames import HEADER, Flag, Kind, encode
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from hearthd.device.channels import lanes
from tests.support.device.lane_rig import KIB, LIMITS, Laned, add, batch, summed, sync
from tests.support.device.rig import Command


@pytest.fixture
def rig() -> Iterator[Laned]:
    laned = Laned()
    yield laned
    laned.stop()


def test_launches_and_syncs_go_over_a_lane_and_copies_to_the_front(rig: Laned) -> None:
    rig.prepare()
    client = rig.lane()
    for number in range(1, 41):
        assert client.batch(add(number), sync(number)) == number
        assert client.response().result.request == number
    assert rig.end_lane() == 40
    assert rig.sum() == summed(*range(1, 41))
    copies = rig.copies()
    assert all(frame.flags == Flag.LANED and frame.channel == 1 for frame in copies)
    responses = [device_pb2.ExecuteResponse.FromString(copy.payload) for copy in copies if copy.kind == Kind.RESPONSE]
    assert [response.result.request for response in responses] == list(range(1, 41))
    acks = [frame.id for frame in copies if frame.id]
    assert acks == sorted(acks) and acks[-1] == 40


def test_lane_responses_equal_the_copies_for_the_front(rig: Laned) -> None:
    client = rig.lane()
    for number in range(1, 11):
        client.batch(Command(request=number, query_event=c.QueryEvent(event=number)), sync(number))
    responses = [client.until(Kind.RESPONSE).payload for _ in range(20)]
    rig.end_lane()
    assert responses == [frame.payload for frame in rig.copies() if frame.kind == Kind.RESPONSE]


def test_acks_without_a_response_are_sent_over_the_lane(rig: Laned) -> None:
    client = rig.lane()
    client.batch(Command(allocate=c.Allocate(buffer=9, size=8)))
    assert client.until(Kind.ACK).id == 1
    assert rig.until(Kind.ACK).flags == Flag.LANED


def test_received_reports_are_forwarded_after_the_responses(rig: Laned) -> None:
    client = rig.lane()
    client.batch(sync(1))
    client.response()
    message = device_pb2.ExecuteRequest(received=device_pb2.Received(responses=1)).SerializeToString()
    client.send(Kind.BATCH, message)
    frame = rig.until(Kind.RECEIVED)
    assert (frame.channel, frame.payload) == (1, message)
    assert [copy.kind for copy in rig.copies() if copy.kind == Kind.RESPONSE]


def test_batches_longer_than_one_read(rig: Laned) -> None:
    client = rig.lane(max_batch_bytes=4 << 20)
    data = random.Random(0).randbytes(1 << 20)
    client.batch(
        Command(allocate=c.Allocate(buffer=3, size=len(data))),
        Command(write=c.Write(buffer=3, data=data)),
        Command(request=1, read=c.Read(buffer=3, size=len(data))),
    )
    assert client.response().result.read.data == data


@pytest.mark.parametrize(
    "garbage",
    [
        random.Random(1).randbytes(256),
        encode(Kind.TICKET, b"ticket"),
        encode(Kind.CLOSE),
        encode(Kind.BATCH, b"", channel=1, id=1),
        encode(Kind.BATCH, b"", flags=2, id=1),
        encode(Kind.BATCH, bytes(65 * KIB), id=1),
        HEADER.pack(1 << 31, Kind.BATCH, 0, 0, 1),
        batch(3, sync(3)),
        batch(1 << 63, sync(3)),
        encode(Kind.BATCH, bytes(300 * KIB)),
    ],
)  # fmt: skip
def test_malformed_data_closes_only_its_lane(rig: Laned, garbage: bytes) -> None:
    rig.send(Kind.OPEN, b"{}", channel=2)
    broken, intact = rig.lane(), rig.lane(2)
    broken.batch(sync(1))
    broken.response()
    # the lane is closed before all of the data has been sent
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        broken.end.sendall(garbage)
    broken.rest()
    assert rig.end_lane() == 1
    intact.batch(sync(1))
    assert intact.response().result.request == 1
    rig.batch(sync(7))  # the first number is 1 again: the session exists, and continues over the link
    rig.until(Kind.ACK, 0)


@pytest.mark.parametrize("claimed", [1, 2])
def test_malformed_batch_is_answered_and_ends_the_lane(rig: Laned, claimed: int) -> None:
    client = rig.lane()
    client.batch(sync(1))
    client.response()
    client.end.sendall(batch(7, sync(2), claimed=claimed))
    assert client.response().event.HasField("protocol_error")
    client.rest()
    assert rig.end_lane() == 1
    again = rig.lane()
    again.seq = 1
    again.batch(sync(2))
    assert again.response().result.request == 2


def test_a_client_that_does_not_read_is_not_read_from(rig: Laned) -> None:
    """Checks that the client's unread answers stop the process from reading its batches, until the client reads."""
    client = rig.lane(max_unread_bytes=64 * KIB)
    rig.call(allocate=c.Allocate(buffer=3, size=32 * KIB))
    reads = [Command(request=request, read=c.Read(buffer=3, size=32 * KIB)) for request in range(1, 5)]
    rig.sock.settimeout(2)
    with pytest.raises(TimeoutError):
        while client.seq < 50:
            client.batch(*reads)
            for _ in reads:
                rig.until(Kind.RESPONSE)
    assert 1 < client.seq < 20  # as many as the socket itself buffers, and few more
    rig.sock.settimeout(60)
    assert [client.response().result.request for _ in range(4 * client.seq)] == [1, 2, 3, 4] * client.seq
    assert rig.end_lane() == client.seq


def test_reading_resumes_when_the_client_has_read(rig: Laned) -> None:
    client = rig.lane(max_unread_bytes=64 * KIB)
    rig.call(allocate=c.Allocate(buffer=3, size=32 * KIB))
    reads = [batch(n, Command(request=n, read=c.Read(buffer=3, size=32 * KIB))) for n in range(1, 200)]
    client.end.sendall(b"".join(reads))
    assert [client.response().result.request for _ in reads] == list(range(1, 200))


def test_a_client_that_leaves_too_much_unread_loses_its_lane(rig: Laned) -> None:
    client = rig.lane(max_unread_hard=300 * KIB)
    rig.call(allocate=c.Allocate(buffer=3, size=256 * KIB))
    client.batch(*[Command(request=n, read=c.Read(buffer=3, size=256 * KIB)) for n in range(1, 9)])
    for _ in range(8):
        rig.until(Kind.RESPONSE)
    assert len([frame for frame in client.rest() if frame.kind == Kind.RESPONSE]) < 8
    assert rig.end_lane() == 1


def test_lane_takes_no_more_batches_than_the_window(rig: Laned) -> None:
    """Sends batches after one that waits for its data."""
    client = rig.lane(max_batches=4)
    client.batch(
        Command(allocate=c.Allocate(buffer=3, size=8)),
        Command(write=c.Write(buffer=3, size=8, transfer=5)),
    )
    rig.barrier()
    for _ in range(20):
        client.batch(Command(fill=c.Fill(buffer=3, size=8, pattern=b"\1")))
        rig.barrier()
    assert rig.end_lane() < 21
    rig.upload(5, bytes(8), 8)


def test_a_window_that_was_full_is_used_again(rig: Laned) -> None:
    client = rig.lane(max_batches=2)
    client.batch(
        Command(allocate=c.Allocate(buffer=3, size=8)),
        Command(write=c.Write(buffer=3, size=8, transfer=5)),
    )
    for number in range(2, 31):
        client.batch(Command(fill=c.Fill(buffer=3, size=8, pattern=b"\1")), sync(number))
        rig.barrier()
    rig.upload(5, bytes(8), 8)
    assert [client.response().result.request for _ in range(2, 31)] == list(range(2, 31))


def test_repeated_batches_use_no_window(rig: Laned) -> None:
    rig.prepare()
    client = rig.lane(max_batches=2, max_unacked_bytes=1 * KIB)
    client.batch(add(5))
    for _ in range(200):
        client.end.sendall(batch(1, add(5)))
    client.batch(sync(2))
    assert client.response().result.request == 2
    rig.end_lane()
    assert all(
        frame.id for frame in rig.copies() if frame.kind == Kind.ACK
    )  # the front counts only the batches that it has passed on
    assert rig.sum() == summed(5)


def test_earlier_batches_are_processed_before_those_of_the_lane(rig: Laned) -> None:
    rig.prepare()
    for number in (1, 2, 3):
        rig.batch(add(number))
    client = rig.hand_over()
    client.seq = 1
    for number in (2, 3, 4, 5):  # the first two are repetitions
        client.batch(add(number))
    client.batch(sync(6))
    assert client.next().kind == Kind.LIVE and client.response().result.request == 6
    assert rig.end_lane() == 6
    assert rig.sum() == summed(1, 2, 3, 4, 5)


def test_client_that_vanishes_in_a_batch_continues_over_the_link(rig: Laned) -> None:
    rig.prepare()
    client = rig.lane()
    batches = [batch(number, add(number)) for number in range(1, 6)]
    client.end.sendall(b"".join(batches[:4]) + batches[4][:-3])
    client.end.close()
    rig.until(Kind.ACK, 4)
    assert rig.end_lane() == 4
    for number in range(1, 8):  # all of them again, as after a broken connection
        rig.batch(add(number))
    assert rig.sum() == summed(*range(1, 8))


def test_front_is_notified_of_an_unused_lane_that_ends(rig: Laned) -> None:
    """Checks that LANE_ENDED is sent for an unused lane only: the client of a used lane knows that it ended, and
    attaches again."""
    client = rig.lane()
    client.batch(sync(1))
    client.response()
    client.end.close()
    rig.end_lane()
    rig.lane().end.close()
    message = rig.until(Kind.LANE_ENDED)  # the first one that was not requested
    assert (message.id, message.channel, json.loads(message.payload)) == (0, 1, {"unused": True, "why": ""})


def test_unread_batches_count_against_the_window(rig: Laned) -> None:
    rig.prepare()
    rig.send(Kind.TURN)  # other sessions use the device: launches wait
    client = rig.lane()
    for number in range(1, 6):
        client.batch(add(number))
    rig.barrier()
    client.end.sendall(batch(4, add(4)))
    rig.barrier()
    assert rig.end_lane() == 5
    client.rest()
    for number in range(1, 8):
        rig.batch(add(number))
    again = rig.lane()
    again.seq = 7
    again.batch(add(8), sync(8))
    rig.barrier()
    rig.send(Kind.TURN, flags=3)
    assert again.response().result.request == 8
    assert rig.end_lane() == 8
    assert rig.sum() == summed(*range(1, 9))
    repeated = [frame for frame in rig.copies() if frame.kind == Kind.ACK and not frame.id]
    assert len(repeated) == 5  # the batches that arrived over the link


def test_responses_after_the_end_of_a_lane_are_not_flagged(rig: Laned) -> None:
    client = rig.lane()
    client.batch(
        Command(allocate=c.Allocate(buffer=3, size=8)),
        Command(write=c.Write(buffer=3, size=8, transfer=5)),
        sync(1),
    )
    rig.barrier()
    assert rig.end_lane() == 1  # the batch waits, and counts
    client.rest()
    rig.upload(5, bytes(8), 8)
    frame = rig.until(Kind.RESPONSE)
    assert not frame.flags
    assert not rig.until(Kind.ACK, 1).flags


def test_ended_lane_is_not_read(rig: Laned) -> None:
    rig.prepare()
    client = rig.lane()
    client.batch(add(1), sync(1))
    client.response()
    assert rig.end_lane() == 1
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            client.batch(add(2))
    assert rig.end_lane() == 1 and rig.sum() == summed(1)


def test_a_lane_that_was_handed_over_before_its_end_is_ended(rig: Laned) -> None:
    """Checks that a lane has ended when the answer arrives, whichever of the two unordered sockets the process polls
    first."""
    for _ in range(50):
        client = rig.hand_over()
        rig.end_lane()
        assert [frame.kind for frame in client.rest()] in ([Kind.LIVE], [])


def test_channel_may_be_opened_after_its_lane(rig: Laned) -> None:
    client = rig.hand_over(7)
    client.batch(sync(1))
    rig.barrier()
    rig.send(Kind.OPEN, b"{}", channel=7)
    assert client.next().kind == Kind.LIVE
    assert client.response().result.request == 1
    assert rig.end_lane(7) == 1


def test_a_lane_whose_channel_is_never_opened_is_closed(rig: Laned) -> None:
    rig.process.lanes.open_timeout_s = 0.05
    assert rig.hand_over(7).rest() == []
    rig.send(Kind.OPEN, b"{}", channel=7)
    assert rig.end_lane(7) == 0
    assert lanes.OPEN_TIMEOUT_S > 1  # long enough for a busy front


def test_lane_ends_with_its_session(rig: Laned) -> None:
    rig.send(Kind.OPEN, b"{}", channel=2)
    client = rig.lane(2)
    client.batch(sync(1))
    client.response()
    rig.send(Kind.CLOSE, channel=2)
    rig.until(Kind.CLOSED)
    client.rest()
    late = rig.hand_over(2)
    assert rig.end_lane(2) == 0
    assert late.rest() == []


def test_a_channel_has_one_lane(rig: Laned) -> None:
    first = rig.lane()
    assert rig.hand_over().rest() == []
    first.batch(sync(1))
    assert first.response().result.request == 1


@pytest.mark.parametrize(
    "body", [{"channel": "x"}, {}, {"channel": 1}, {"channel": 1, **LIMITS, "max_batches": 0}], ids=repr
)
def test_malformed_message_closes_its_descriptors(rig: Laned, body: dict[str, Any]) -> None:
    test_end, process_end = socket.socketpair()
    with test_end:
        descriptors.send(rig.files, {"kind": "lane", **body}, [process_end.fileno()])
        process_end.close()
        test_end.settimeout(30)
        assert test_end.recv(1) == b""
    rig.lane()


def test_unresponsive_front_blocks_lanes(rig: Laned) -> None:
    """Checks that copies for a front that does not read do not accumulate. The client's reports of received answers
    also go to the front."""
    client = rig.lane()
    message = encode(Kind.BATCH, device_pb2.ExecuteRequest(received={"responses": 1}).SerializeToString())
    client.end.settimeout(1.0)
    with pytest.raises(TimeoutError):
        while client.sent < 1 << 28:
            client.sent += client.end.send(1000 * message)
    rig.until(Kind.RECEIVED)
    client.end.settimeout(30)
    client.end.sendall(message[client.sent % len(message) :])  # the front reads again, so the process does, too
    client.batch(sync(1))
    while not select.select([client.end], [], [], 0.0)[0]:  # only the front's reading makes the process continue
        rig.until(Kind.RECEIVED)
    assert client.response().result.request == 1


def test_a_lane_that_waits_takes_no_processor(rig: Laned) -> None:
    """Checks a lane that must not be read from, and one whose client disconnects in that state."""
    client = rig.lane(max_batches=1)
    client.batch(
        Command(allocate=c.Allocate(buffer=3, size=8)),
        Command(write=c.Write(buffer=3, size=8, transfer=5)),
    )
    for _ in range(4):
        client.batch(Command(fill=c.Fill(buffer=3, size=8, pattern=b"\1")))
    rig.barrier()
    iterations = 0

    def count(_nanoseconds: int) -> None:
        nonlocal iterations
        iterations += 1

    rig.process.loop.on_iteration = count
    select.select([rig.sock], [], [], 0.3)  # no frame arrives
    assert iterations < 20
    client.end.close()
    select.select([rig.sock], [], [], 0.3)
    assert iterations < 30
    rig.upload(5, bytes(8), 8)


Step = tuple[str, int]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("batch"), st.integers(1, 9)),
    st.tuples(st.just("again"), st.integers(1, 5)),
    st.tuples(st.just("sync"), st.just(0)),
    st.tuples(st.just("received"), st.just(0)),
)
Make = Callable[[], Laned]


@pytest.fixture(scope="module")
def shared() -> Iterator[Laned]:
    laned = Laned()
    laned.prepare()
    yield laned
    laned.stop()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEPS, min_size=1, max_size=30), st.integers(0, 1000), st.lists(st.integers(1, 200), min_size=1))
def test_batches_cut_at_any_byte_run_once(shared: Laned, steps: list[Step], sent: int, sizes: list[int]) -> None:
    """Sends a lane's bytes in pieces of any size and cuts the lane after `sent` thousandths; all batches are sent again
    over the link."""
    base = shared.end_lane()
    shared.call(fill=c.Fill(buffer=1, size=8, pattern=b"\0"))
    shared.copies()
    client = shared.lane(max_batches=64)
    batches: dict[int, list[c.Command]] = {}
    values: list[int] = []
    stream, ends = b"", {}
    for kind, value in steps:
        if kind == "again":
            seq = max(base + 1, base + len(batches) - value)
            stream += batch(seq, *batches[seq]) if seq in batches else b""
        elif kind == "received":
            stream += encode(Kind.BATCH, device_pb2.ExecuteRequest(received={"responses": 1}).SerializeToString())
        else:
            seq = base + len(batches) + 1
            batches[seq] = [sync(seq)] if kind == "sync" else [add(value)]
            values += [value] if kind == "batch" else []
            stream += batch(seq, *batches[seq])
            ends[seq] = len(stream)
    cut = len(stream) * sent // 1000
    at = 0
    for size in itertools.cycle(sizes):
        if at >= cut:
            break
        client.end.sendall(stream[at : min(at + size, cut)])
        at += size
    client.end.shutdown(socket.SHUT_WR)
    answers = client.rest()
    last = shared.end_lane()
    assert last == max([seq for seq, end in ends.items() if end <= cut], default=base)
    over_lane = [frame.payload for frame in answers if frame.kind == Kind.RESPONSE]
    copies = shared.copies()
    flagged = [frame.payload for frame in copies if frame.kind == Kind.RESPONSE and frame.flags]
    assert flagged[: len(over_lane)] == over_lane
    for seq, commands in batches.items():
        message = device_pb2.ExecuteRequest(batch=c.Batch(seq=seq, commands=commands))
        shared.send(Kind.BATCH, message.SerializeToString(), channel=1)
    assert shared.sum() == summed(*values)
    answered = [frame.payload for frame in (*copies, *shared.copies()) if frame.kind == Kind.RESPONSE]
    expected = [seq for seq, commands in batches.items() if commands[0].request]
    assert [device_pb2.ExecuteResponse.FromString(payload).result.request for payload in answered] == expected
