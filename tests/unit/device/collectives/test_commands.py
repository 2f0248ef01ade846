"""Collectives until their launch: the messages to the front, and the effect of its answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status, from_text
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.collectives.negotiation import REFILL
from hearthd.device.collectives.parts import BufferRange, CollectivePart
from hearthd.device.collectives.pending import COPY_PIECE, MAX_LAUNCHED, OperationKey, PendingCollective
from hearthd.device.session.buffer import Buffer
from tests.support.device.peers import WRITTEN, PeerRig, collective, encode, operation

ALL_GATHER = c.COLLECTIVE_KIND_ALL_GATHER
BARRIER = c.COLLECTIVE_KIND_BARRIER


@pytest.fixture
def rig() -> Iterator[PeerRig]:
    peer_rig = PeerRig()
    yield peer_rig
    peer_rig.close()


def test_operation_is_presented_released_and_completed(rig: PeerRig) -> None:
    gather = operation(ALL_GATHER, 1, 3, count=4, dtype="complex64")
    rig.batch(collective(4, gather, devices=(1, 0), timeout=7))
    presented = rig.hear("present")
    assert presented == {
        "op": "present", "channel": 1, "group": "", "devices": [1, 0], "sequence": 4, "timeout": 7.0,
        "signature": [
            {"kind": "all_gather", "count": 4, "dtype": "complex64", "reduce": "", "root": 0, "peer": 0}
        ],
    }  # fmt: skip
    sync = rig.sync()
    peer = rig.join(rank=1)
    rig.go(presented, 1)
    peer.release()
    assert rig.reason(sync) == ""
    ((exchange,),) = peer.given
    assert (exchange.kind, exchange.count, exchange.dtype) == ("all_gather", 32, "uint8")
    assert rig.bytes_of(3) == bytes([WRITTEN]) * 4
    assert rig.hear("progress") == {"op": "progress", "comm": "a-1", "done": 1}


def test_all_reduce_is_one_operation_of_the_sorted_devices(rig: PeerRig) -> None:
    rig.batch(
        c.Command(
            all_reduce=c.AllReduce(
                devices=(1, 0), sequence=2, source=1, destination=2, count=3, dtype="float32", op=c.REDUCE_OP_MAX
            )
        )
    )
    presented = rig.hear("present")
    assert presented["devices"] == [0, 1] and presented["timeout"] == 30.0
    assert presented["signature"] == [
        {"kind": "all_reduce", "count": 3, "dtype": "float32", "reduce": "max", "root": 0, "peer": 0}
    ]
    peer = rig.join()
    rig.go(presented, 1)
    peer.release()
    assert rig.bytes_of(2, 16) == bytes([WRITTEN]) * 12 + b"\2\2\2\2"
    assert peer.given[0][0].op == "max"


def test_broadcast_in_place_only_reads_the_array_of_the_root(rig: PeerRig) -> None:
    rig.batch(collective(1, operation(c.COLLECTIVE_KIND_BROADCAST, 1, 1, count=3, root=0)))
    peer = rig.join()
    rig.go(rig.hear("present"), 1)
    peer.release()
    assert rig.reason(rig.sync()) == ""
    ((exchange,),) = peer.given
    assert exchange.source and not exchange.destination
    assert rig.bytes_of(1) == b"\1" * 4


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ({"devices": ()}, Reason.INVALID_ARGUMENT),
        ({"devices": (1,)}, Reason.INVALID_ARGUMENT),
        ({"devices": (0, 1, 1)}, Reason.INVALID_ARGUMENT),
        ({"devices": (0, 1), "group": b"g"}, Reason.INVALID_ARGUMENT),
        ({"group": b"unknown"}, Reason.INVALID_HANDLE),
    ],
    ids=str,
)
def test_invalid_groups_are_refused(rig: PeerRig, group: dict[str, Any], reason: Reason) -> None:
    call = rig.start(collective=collective(1, **group).collective)
    assert rig.reason(call) == reason
    assert rig.heard("present") == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"count": 17}, Reason.OUT_OF_BOUNDS),
        ({"destination": 9}, Reason.INVALID_HANDLE),
        ({"dtype": "uint16"}, Reason.UNSUPPORTED),
        ({"kind": 0}, Reason.INVALID_ARGUMENT),
    ],
    ids=str,
)
def test_refused_operations_are_not_presented(rig: PeerRig, fields: dict[str, Any], reason: Reason) -> None:
    rig.batch(collective(1, operation(**fields)))
    assert rig.reason(rig.sync()) == reason
    assert rig.heard("present") == []
    rig.batch(collective(1))  # the number has not been used
    assert rig.hear("present")["sequence"] == 1


def test_the_same_number_twice(rig: PeerRig) -> None:
    rig.batch(collective(1), collective(1))
    presented = rig.hear("present")
    peer = rig.join()
    rig.go(presented, 1)
    peer.release()
    assert rig.reason(rig.sync()) == Reason.INVALID_ARGUMENT
    rig.batch(collective(1))  # this number has been launched
    assert rig.reason(rig.sync()) == Reason.INVALID_ARGUMENT
    rig.batch(collective(1, devices=(1, 0)))  # the number of another group
    assert rig.hear("present")["devices"] == [1, 0]


def test_empty_operations_are_matched(rig: PeerRig) -> None:
    peer = rig.join()
    nothing = c.Collective(devices=(0, 1), sequence=1)
    rig.batch(c.Command(collective=nothing), collective(2, operation(count=0)))
    first, second = rig.hear("present"), rig.hear("present")
    assert first["signature"] == [] and second["signature"][0]["count"] == 0
    sync = rig.sync()
    rig.go(first, 1)
    rig.go(second, 2)
    assert rig.reason(sync) == ""
    assert peer.given == []
    done = 0
    while done < 2:
        done = rig.hear("progress")["done"]


def test_work_queued_after_a_barrier_waits(rig: PeerRig) -> None:
    peer = rig.join()
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    assert rig.reason(rig.read(2, stream=5)) == ""  # from now on ordered after the work that made the buffer
    rig.batch(collective(1, operation(BARRIER, 0, 0)))
    rig.go(rig.hear("present"), 1)
    read = rig.read(1)
    assert rig.reason(rig.read(2, stream=5)) == ""  # a read on another stream does not wait
    assert not rig.came(Kind.RESULT, read)
    peer.release()
    assert rig.reason(read) == ""
    assert peer.given[0][0].kind == "barrier"


@pytest.mark.parametrize("follows", [False, True], ids=["without", "with"])
def test_all_work_after_a_synchronous_collective_waits(rig: PeerRig, follows: bool) -> None:
    """Checks that the command orders a read after the operation, which does not use buffer 2."""
    peer = rig.join()
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    # from here on, stream 5 is ordered after the work that made buffer 3
    assert rig.reason(rig.read(3, stream=5)) == ""
    rig.batch(collective(1))
    rig.go(rig.hear("present"), 1)
    if follows:
        assert not rig.call(sync_collective=c.SyncCollective()).HasField("error")
    read = rig.read(2)
    if follows:
        assert rig.reason(rig.read(3, stream=5)) == "" and not rig.came(Kind.RESULT, read)
        peer.release()
    assert rig.reason(read) == ""
    peer.release()


def test_consecutive_operations_are_presented_together_and_blocked_ones_are_not(rig: PeerRig) -> None:
    rig.batch(collective(1), collective(2), c.Command(write=c.Write(buffer=1, transfer=9, size=64)), collective(3))
    first, second = rig.hear("present"), rig.hear("present")
    assert [first["sequence"], second["sequence"]] == [1, 2]
    peer = rig.join()
    rig.go(first, 1)
    rig.go(second, 2)
    peer.release(3)
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    assert rig.reason(rig.sync(5)) == ""
    assert rig.heard("present") == []  # it is not its turn
    rig.upload(9, b"\5" * 64, 64)
    third = rig.hear("present")
    rig.go(third, 3)
    assert rig.reason(rig.sync()) == "" and len(peer.given) == 3


def test_never_launched_out_of_order(rig: PeerRig) -> None:
    peer = rig.join()
    rig.batch(collective(1, timeout=0.3), collective(2, timeout=0.3))
    first, second = rig.hear("present"), rig.hear("present")
    sync = rig.sync()
    rig.go(second, 1)
    rig.go(first, 2)  # it precedes the other here, and follows it on the communicator
    failed = rig.hear("failed")
    assert failed["timed_out"] and failed["comm"] == "a-1"
    rig.abort(Refusal(Reason.COLLECTIVE_TIMEOUT, "crossed"))
    assert rig.reason(sync) == Reason.COLLECTIVE_TIMEOUT
    assert peer.given == [] and peer.aborting.wait(10)


def test_the_fronts_refusal(rig: PeerRig) -> None:
    rig.batch(collective(1))
    presented = rig.hear("present")
    refusal = Refusal(Reason.COLLECTIVE_MISMATCH, "odd", details={"field": "count"})
    status = encode(refusal.to_status().SerializeToString())
    rig.tell("fail", **{key: presented[key] for key in ("channel", "group", "devices", "sequence")}, status=status)
    result = rig.answer(rig.sync())
    assert from_status(result.error).details["field"] == "count"
    rig.batch(collective(2))
    presented = rig.hear("present")
    rig.tell("fail", **{key: presented[key] for key in ("channel", "group", "devices", "sequence")}, status="%%")
    assert rig.reason(rig.sync()) == Reason.COMMUNICATOR_FAILED


def test_invalid_collective_frames_are_ignored(rig: PeerRig) -> None:
    peer = rig.join()
    rig.batch(collective(1))
    presented = rig.hear("present")
    for body in (b"{", b"[]", b"7", b'{"op": 5}', b'{"op": "go"}', b'{"op": "join", "comm": "x"}', b'{"no": "op"}',
                 b'{"op": "join", "comm": "x", "unique_id": "%%", "rank": 0, "ranks": 2}', b"\xff\xfe",
                 b'{"op": "group", "channel": "x", "group": "aa", "rank": 0, "ranks": 2}',
                 b'{"op": "go", "channel": 1, "devices": 7, "sequence": 1, "comm": "a-1"}'):  # fmt: skip
        rig.send(Kind.COLLECTIVE, body)
    rig.tell("fail", channel=3, group="", devices=[0, 1], sequence=1, status="")  # of another session
    rig.tell("fail", channel=1, group="", devices=[1, 0], sequence=1, status="")
    rig.tell("fail", channel=1, group="aa", devices=[0, 1], sequence=1, status="")
    rig.tell("ungroup", channel=1, group="aa")
    rig.tell("abort", comm="unheard of", reason="", status="")
    rig.tell("join", comm="a-1", unique_id=encode(b"x"), rank=1, ranks=2)  # joined already
    rig.tell("create_id", comm="a-1", ranks=2)
    rig.go(presented, 1)
    rig.go(presented, 1)
    rig.tell("fail", **{key: presented[key] for key in ("channel", "group", "devices", "sequence")}, status="")
    rig.go(presented, 1, comm="a-2")
    peer.release()
    assert rig.reason(rig.sync()) == ""
    assert len(peer.given) == 1 and rig.server.peers.joined == [peer]
    assert rig.heard("failed") == rig.heard("id") == rig.heard("joined") == []


def test_ids_and_joins_that_fail(rig: PeerRig) -> None:
    rig.tell("create_id", comm="a-1", ranks=2)
    assert rig.hear("id") == {"op": "id", "comm": "a-1", "unique_id": encode(b"id of 2")}
    rig.abort()
    rig.tell("join", comm="a-2", unique_id=encode(b"bad"), rank=0, ranks=2)
    failed = rig.hear("join_failed")
    assert failed["comm"] == "a-2" and failed["status"]
    assert rig.server.peers.forgotten == [b"id of 2"]


def test_communicators_are_made_off_the_device_handle_thread(rig: PeerRig) -> None:
    rig.tell("create_id", comm="a-1", ranks=2)
    rig.hear("id")
    rig.join()
    assert set(rig.server.peers.threads) == {"unique_id", "join"}
    assert rig.thread not in rig.server.peers.threads.values()


def test_communicators_of_copies_are_made_by_another_factory(rig: PeerRig) -> None:
    rig.tell("create_id", comm="a-1", ranks=2, transport="copy")
    rig.hear("id")
    rig.tell("join", comm="a-1", unique_id=encode(b"x"), rank=0, ranks=2, transport="copy")
    assert rig.hear("joined")["comm"] == "a-1"
    assert len(rig.server.copies.joined) == 1 and not rig.server.peers.threads
    rig.tell("create_id", comm="a-2", ranks=2, transport="copy")
    rig.hear("id")
    rig.abort(comm="a-2")
    rig.gauges()
    assert rig.server.copies.forgotten == [b"id of 2"]


@pytest.mark.parametrize(("size", "weight"), [(0, 1), (1, 1), (COPY_PIECE, 2), (10 * COPY_PIECE + 1, 11)])
def test_copy_weighs_as_much_as_its_pieces(size: int, weight: int) -> None:
    """The driver blocks a thread that has submitted too much, and a copy is submitted in pieces."""
    source = BufferRange(Buffer(1, size), 0, size)
    part = CollectivePart("send", size, "uint8", "", 0, 1, 0, source, None)
    key = OperationKey(1, "", (0, 1), 1)
    assert PendingCollective(None, None, key, [part], 30.0).weight == weight  # type: ignore[arg-type]


# ---- groups over daemons ----

GROUP = bytes(range(16))


def test_a_group_has_its_own_rank_and_its_own_track(rig: PeerRig) -> None:
    rig.tell("group", channel=1, group=GROUP.hex(), rank=2, ranks=3)
    shared = rig.join("a-1")
    group_peer = rig.join("b-1", group=GROUP.hex(), rank=2, ranks=3)
    gather = operation(ALL_GATHER, 1, 2, count=5)  # in place at rank 2 of 3
    gather.source, gather.source_offset = 2, 40
    rig.batch(collective(1), collective(1, gather, group=GROUP))
    presented = {message["group"]: message for message in (rig.hear("present"), rig.hear("present"))}
    assert presented[GROUP.hex()]["devices"] == []
    rig.go(presented[""], 1)
    rig.go(presented[GROUP.hex()], 1, comm="b-1")
    sync = rig.sync()
    group_peer.release()
    assert rig.hear("progress")["comm"] == "b-1"  # although an earlier released operation has not ended
    assert rig.bytes_of(2, 60) == bytes([WRITTEN]) * 20 + b"\2" * 40
    shared.release()
    assert rig.reason(sync) == ""
    assert shared.streams[0] is not group_peer.streams[0]


def test_leaving_a_group_fails_its_waiting_operations(rig: PeerRig) -> None:
    rig.tell("group", channel=1, group=GROUP.hex(), rank=0, ranks=2)
    rig.batch(collective(1, group=GROUP))
    rig.hear("present")
    sync = rig.sync()
    rig.tell("ungroup", channel=1, group=GROUP.hex())
    assert rig.reason(sync) == Reason.COMMUNICATOR_FAILED
    rig.batch(collective(2, group=GROUP))
    assert rig.reason(rig.sync()) == Reason.INVALID_HANDLE


def test_group_of_another_session_is_refused(rig: PeerRig) -> None:
    rig.tell("group", channel=2, group=GROUP.hex(), rank=0, ranks=2)
    rig.batch(collective(1, group=GROUP))
    assert rig.reason(rig.sync()) == Reason.INVALID_HANDLE


# ---- many ----


def test_no_more_is_presented_than_the_driver_takes(rig: PeerRig) -> None:
    sends = [operation(c.COLLECTIVE_KIND_SEND, 1, 0, peer=1, count=1)] * 500
    peer = rig.join()
    rig.batch(collective(1, *sends), collective(2, *sends), collective(3))
    first = rig.hear("present")
    assert len(first["signature"]) == 500
    sync = rig.sync()
    assert rig.heard("present") == []
    rig.go(first, 1)
    second = rig.hear("present")  # it is its turn, independent of room, because other ranks wait for it
    assert second["sequence"] == 2
    rig.go(second, 2)
    assert rig.heard("present") == [] and len(peer.given) == 1  # the operation is not launched before there is room
    peer.release()
    third = rig.hear("present")
    assert len(peer.given) == 2
    rig.go(third, 3)
    peer.release(2)
    assert rig.reason(sync) == "" and len(peer.given) == 3


def test_equal_consecutive_operations_share_one_message(rig: PeerRig) -> None:
    peer = rig.join()
    different = collective(4, operation(count=8))
    rig.batch(collective(1), collective(2), collective(3), different, collective(5), collective(6, timeout=9))
    messages = [json.loads(rig.until(Kind.COLLECTIVE).payload) for _ in range(5)]
    assert [(message["sequence"], message.get("count", 1)) for message in messages] == [
        (1, 1),
        (2, 2),
        (4, 1),
        (5, 1),
        (6, 1),
    ]
    assert messages[1]["behind"] == [[[0, 1], 1]], (
        "the first is sent immediately, the others at the end of the loop iteration"
    )
    rig.go({**messages[0], "count": 3}, 1)
    rig.go({**messages[2], "count": 3}, 4)
    peer.release(6)
    assert rig.reason(rig.sync()) == "" and len(peer.given) == 6


def test_operations_beyond_the_limit_are_presented_in_order_as_others_complete(rig: PeerRig) -> None:
    peer = rig.join()
    rig.batch(*(collective(number) for number in range(1, 521)))
    presented = [rig.hear("present") for _ in range(512)]
    assert [message["sequence"] for message in presented] == list(range(1, 513)) and rig.heard("present") == []
    assert "behind" not in presented[0] and presented[9]["behind"] == [[[0, 1], 9]]
    sync = rig.sync()
    for index, message in enumerate(presented, 1):
        rig.go(message, index)
    peer.release(REFILL - 1)
    while sum(message["done"] for message in rig.heard("progress")[-1:]) < REFILL - 1:
        threading.Event().wait(0.01)
    assert rig.heard("present") == []
    peer.release()
    assert [rig.hear("present")["sequence"] for _ in range(8)] == list(range(513, 521))
    assert not rig.came(Kind.RESULT, sync)


def test_presented_operations_of_many_streams_are_bounded(rig: PeerRig) -> None:
    sends = [operation(c.COLLECTIVE_KIND_SEND, 1, 0, peer=1, count=1)] * 1000
    streams = range(5, 11)
    rig.batch(*(c.Command(create_stream=c.CreateStream(stream=stream)) for stream in streams))
    rig.batch(*(collective(number, *sends, stream=stream) for number, stream in enumerate(streams, 1)))
    presented = [rig.hear("present") for _ in range(4)]
    assert rig.heard("present") == [], "4096, with each operation of a batch counted"
    peer = rig.join()
    rig.go(presented[0], 1)
    peer.release()
    assert rig.hear("present")["sequence"] == 5


def test_no_more_is_launched_than_the_driver_takes(rig: PeerRig) -> None:
    peer = rig.join()
    rig.batch(*(collective(number) for number in range(1, 301)))
    for index in range(1, 301):
        rig.go(rig.hear("present"), index)
    sync = rig.sync()
    rig.gauges()
    assert len(peer.given) == MAX_LAUNCHED
    peer.release(300)
    assert rig.reason(sync) == "" and len(peer.given) == 300


def test_groups_of_the_device_are_launched_in_the_order_of_the_messages(rig: PeerRig) -> None:
    """Checks that the order does not depend on the communicators: all use one track, and their peers launch in this
    order."""
    aborted_peer, released_peer = rig.join("a-1"), rig.join("a-2")
    rig.batch(c.Command(create_stream=c.CreateStream(stream=5)))
    second = collective(1, operation(source=2, destination=2), devices=(1, 0), stream=5)
    rig.batch(collective(1), collective(2), second)
    presented = {
        (tuple(message["devices"]), message["sequence"]): message for message in (rig.hear("present") for _ in range(3))
    }
    rig.go(presented[(0, 1), 2], 1)  # queued after operations that have not been released
    rig.go(presented[(1, 0), 1], 1, "a-2")
    rig.gauges()
    assert aborted_peer.given == released_peer.given == []
    rig.tell("abort", comm="a-1", reason="crossed", status="")
    released_peer.release()
    assert rig.reason(rig.sync(5)) == "" and len(released_peer.given) == 1


def test_operations_after_a_group_over_daemons_are_not_presented(rig: PeerRig) -> None:
    rig.tell("group", channel=1, group=GROUP.hex(), rank=0, ranks=2)
    group_peer = rig.join("b-1", group=GROUP.hex())
    rig.batch(collective(1, group=GROUP), collective(2, group=GROUP), collective(1), collective(3, group=GROUP))
    presented = [rig.hear("present") for _ in range(2)]
    assert [message["group"] for message in presented] == [GROUP.hex()] * 2 and rig.heard("present") == []
    assert presented[1]["behind"] == [[[], 1]]
    rig.go(presented[0], 1, "b-1")
    rig.go(presented[1], 2, "b-1")
    assert rig.hear("present")["group"] == ""
    group_peer.release(2)


@pytest.mark.parametrize("group", [{}, {"group": bytes(range(16))}], ids=["devices", "group"])
def test_rank_that_cannot_take_part_reports_it(rig: PeerRig, group: dict[str, Any]) -> None:
    rig.tell("group", channel=1, group=GROUP.hex(), rank=0, ranks=2)
    rig.batch(collective(1, operation(destination=9), **group), collective(2, operation(count=17), **group))
    first, second = rig.hear("withdraw"), rig.hear("withdraw")
    assert (first["sequence"], second["sequence"]) == (1, 2)
    assert first["devices"] == ([] if group else [0, 1]) and first["group"] == (GROUP.hex() if group else "")
    reasons = [from_text(message["status"]).reason for message in (first, second)]
    assert reasons == [Reason.INVALID_HANDLE, Reason.OUT_OF_BOUNDS]
    assert rig.reason(rig.sync()) == Reason.INVALID_HANDLE


def test_operation_with_a_failed_source_is_withdrawn(rig: PeerRig) -> None:
    rig.batch(c.Command(fill=c.Fill(buffer=2, size=4, pattern=b"\1", offset=64)), collective(1, operation(source=2)))
    assert rig.hear("withdraw")["sequence"] == 1 and rig.heard("present") == []
    assert rig.reason(rig.sync()) == Reason.OUT_OF_BOUNDS


def test_a_join_delays_no_command(rig: PeerRig) -> None:
    rig.server.peers.join_blocks.clear()
    rig.tell("join", comm="a-1", unique_id=encode(b"x"), rank=0, ranks=2)
    assert rig.bytes_of(1) == b"\1" * 4  # the process serves other commands in the meantime
    assert sum(thread.name == "communicator" for thread in threading.enumerate()) == 1
    rig.abort()
    assert rig.heard("wedged") == []
    rig.server.peers.join_blocks.set()
    rig.batch(c.Command(fill=c.Fill(buffer=1, size=64, pattern=b"\7")))
    assert rig.bytes_of(1) == b"\7" * 4
    while not rig.server.peers.joined:
        rig.call(flush=c.Flush())
    assert rig.server.peers.joined[0].aborting.wait(10)  # it arrived too late to be used
    assert rig.heard("joined") == []
    assert rig.process.device.telemetry.joins_abandoned == 1
