"""Outbox for the front: frames in order, in as few messages as possible, and without undue delay."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from hearth_proto.frames import Flag, Frame, FrameReader, Kind
from hearthd.device.outbox import COPY_S, Outbox

FrameKeys = list[tuple[int, int, int]]


class Peer:
    """The front's end of the link of an outbox."""

    def __init__(self) -> None:
        link, self.end = socket.socketpair()
        link.setblocking(False)
        self.end.setblocking(False)
        self._link = link
        self.outbox = Outbox(link, lambda wanted: None)

    def frames(self) -> list[Frame]:
        """Returns the frames that have arrived."""
        try:
            data = self.end.recv(1 << 20)
        except BlockingIOError:
            return []
        return FrameReader().feed(data)

    def received(self) -> FrameKeys:
        """Returns kind, channel and id of the frames that have arrived."""
        return [(frame.kind, frame.channel, frame.id) for frame in self.frames()]

    def close(self) -> None:
        self._link.close()
        self.end.close()


@pytest.fixture
def peer() -> Iterator[Peer]:
    front_end = Peer()
    yield front_end
    front_end.close()


def test_response_carries_the_ack_before_it(peer: Peer) -> None:
    peer.outbox.put(Kind.ACK, channel=3, id=7)
    peer.outbox.put(Kind.RESPONSE, b"done", channel=3)
    peer.outbox.put(Kind.RESPONSE, b"done", channel=3)
    peer.outbox.send()
    assert peer.received() == [(Kind.RESPONSE, 3, 7), (Kind.RESPONSE, 3, 0)]


def test_ack_covers_earlier_acks(peer: Peer) -> None:
    for seq in (1, 2, 5):
        peer.outbox.put(Kind.ACK, channel=3, id=seq)
    peer.outbox.put(Kind.RESPONSE, b"of another", channel=4)
    peer.outbox.send()
    assert peer.received() == [(Kind.ACK, 3, 5), (Kind.RESPONSE, 4, 0)]


@pytest.mark.parametrize("kind", [Kind.PONG, Kind.RESULT, Kind.CLOSED, Kind.CHUNK, Kind.RECEIVED, Kind.ACK])
def test_other_messages_stay_after_the_ack(peer: Peer, kind: Kind) -> None:
    peer.outbox.put(Kind.ACK, channel=3, id=7)
    if kind == Kind.CHUNK:
        peer.outbox.put_chunk(b"head", b"data", channel=3, id=9, flags=0)
    elif kind == Kind.ACK:
        peer.outbox.repeated(3, 0)
    else:
        peer.outbox.put(kind, channel=3, id=9)
    peer.outbox.send_all()
    assert peer.received() == [(Kind.ACK, 3, 7), (kind, 3, 0 if kind == Kind.ACK else 9)]


def test_a_lone_ack_waits_briefly_for_further_frames(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("hearthd.device.outbox.time.perf_counter", lambda: now[0])
    outbox = peer.outbox
    assert outbox.max_sleep(None) is None
    outbox.put(Kind.ACK, channel=3, id=1)
    outbox.send()
    assert not peer.received() and outbox.max_sleep(None) == COPY_S and outbox.max_sleep(0.0) == 0.0
    now[0] += COPY_S / 2
    outbox.put(Kind.ACK, channel=3, id=2)  # later frames do not delay it further
    outbox.put(Kind.ACK, channel=4, id=1)
    outbox.send()
    assert not peer.received()
    now[0] += COPY_S / 2
    outbox.send()
    assert peer.received() == [(Kind.ACK, 3, 2), (Kind.ACK, 4, 1)]
    assert outbox.max_sleep(None) is None


class FakeLane:
    """A lane that has nothing to send."""

    def put(self, kind: int, payload: bytes = b"") -> None:
        pass

    def put_ack(self) -> None:
        pass

    def acknowledge(self, seq: int) -> bool:
        return False

    def settle(self) -> None:
        pass


def test_copy_of_a_response_carries_the_copy_of_the_ack_before_it(peer: Peer) -> None:
    """An acknowledgement from before the lane is not a copy, and stays separate."""
    outbox = peer.outbox
    outbox.put(Kind.ACK, channel=3, id=6)
    outbox.lanes[3] = FakeLane()  # type: ignore[assignment]
    for seq in (7, 8):
        outbox.put(Kind.ACK, channel=3, id=seq)
    outbox.put(Kind.RESPONSE, b"done", channel=3)
    outbox.put(Kind.RESPONSE, b"done", channel=3)
    outbox.put(Kind.PONG, id=1)
    outbox.send()
    laned = int(Flag.LANED)
    assert [(frame.kind, frame.flags, frame.id) for frame in peer.frames()] == [
        (Kind.ACK, 0, 6), (Kind.RESPONSE, laned, 8), (Kind.RESPONSE, laned, 0), (Kind.PONG, 0, 1)
    ]  # fmt: skip
