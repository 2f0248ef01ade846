"""The limiter of one listener, and the look at the process's own sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from hearthd.front.connections.limiter import ConnectionLimiter, Slot
from hearthd.front.connections.open_sockets import OpenSockets


class Observer:
    def __init__(self) -> None:
        self.open = 0
        self.refused: Counter[str] = Counter()

    def connection_opened(self, listener: str) -> None:
        self.open += 1

    def connection_closed(self, listener: str) -> None:
        self.open -= 1

    def connection_refused(self, listener: str, peer: str, reason: str) -> None:
        self.refused[reason] += 1


def limiter(observer: Observer, most: int = 8, strangers: int = 4, per_peer: int = 2) -> ConnectionLimiter:
    return ConnectionLimiter(
        "test", observer, most=most, most_strangers=strangers, most_per_peer=per_peer, timeout=10.0
    )


@given(st.lists(st.tuples(st.sampled_from(["admit", "prove", "release"]), st.integers(0, 5)), max_size=80))
def test_limits_hold_after_every_step(steps: list[tuple[str, int]]) -> None:
    observer = Observer()
    limits = limiter(observer)
    slots: list[Slot] = []
    for step, number in steps:
        if step == "admit":
            slot = limits.admit(f"10.0.0.{number}", lambda: None)
            if slot is not None:
                slots.append(slot)
        elif slots:
            slot = slots[number % len(slots)]
            slot.prove() if step == "prove" else slot.release()
        strangers = [each for each in limits._slots if each.stranger]
        assert len(limits) <= 8 and limits.strangers == len(strangers) <= 4
        assert max(Counter(each.peer for each in strangers).values(), default=0) <= 2
        assert observer.open == len(limits)


def test_a_stranger_takes_the_place_of_the_oldest_of_the_largest_peer() -> None:
    observer, dropped = Observer(), []
    limits = limiter(observer)
    for name in ("a1", "a2"):
        assert limits.admit("10.0.0.1", lambda name=name: dropped.append(name)) is not None
    for name in ("b1", "c1"):
        assert limits.admit(f"10.0.0.{ord(name[0])}", lambda name=name: dropped.append(name)) is not None
    assert limits.admit("10.0.0.9", lambda: dropped.append("d1")) is not None
    assert dropped == ["a1"]
    assert observer.refused == {"strangers": 1}


def test_those_with_a_credential_are_never_dropped_and_fill_the_listener() -> None:
    observer = Observer()
    limits = limiter(observer, most=3)
    for _ in range(3):
        slot = limits.admit("10.0.0.1", lambda: None)
        assert slot is not None
        slot.prove()
    assert limits.admit("10.0.0.2", lambda: None) is None
    assert observer.refused == {"full": 1}


def test_a_silent_stranger_is_dropped_and_one_with_a_credential_is_not() -> None:
    async def scenario() -> None:
        observer, over = Observer(), asyncio.Event()
        limits = limiter(observer)
        proven, silent = (limits.admit("10.0.0.1", over.set) for _ in range(2))
        assert proven is not None and silent is not None
        proven.expect(0.01)
        silent.expect(0.02)
        proven.prove()
        await over.wait()
        assert observer.refused == {"silent": 1} and len(limits) == 1

    asyncio.run(scenario())


def test_own_sockets_are_found_measured_and_shut_without_a_free_descriptor() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sockets = OpenSockets()
        try:
            sockets.scan()
            with socket.create_connection(server.getsockname()) as client:
                accepted, _ = server.accept()
                with accepted:
                    new, _ = sockets.scan()
                    number = accepted.fileno()
                    found = sockets.find(number, new[number])
                    assert found is not None
                    assert found.local == str(server.getsockname()[1])
                    assert found.name == f"127.0.0.1|{client.getsockname()[1]}"
                    client.sendall(b"x" * 1000)
                    accepted.recv(1000, socket.MSG_WAITALL)
                    assert sockets.received(number, new[number], tcp=True) == 1000
                    assert not sockets.shut(number, new[number] + 1), "another socket took the number"
                    assert sockets.shut(number, new[number])
                    assert client.recv(1) == b""
                _, gone = sockets.scan()
                assert number in gone
            assert sockets.find(number, new[number]) is None
        finally:
            sockets.close()


def test_users_of_unix_sockets_are_known(tmp_path: object) -> None:
    left, right = socket.socketpair()
    sockets = OpenSockets()
    try:
        new, _ = sockets.scan()
        found = sockets.find(left.fileno(), new[left.fileno()])
        assert found is not None and found.peer.startswith("uid:") and found.pid > 0
        right.sendall(b"x" * 10)
        assert sockets.received(left.fileno(), new[left.fileno()], tcp=False) == 10
    finally:
        sockets.close()
        left.close()
        right.close()
