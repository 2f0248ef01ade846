"""The limiter of one listener, and the scan of the process's own sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from multiprocessing import connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from hearthd.front.connections import socket_filter
from hearthd.front.connections.holding import AcceptFilter
from hearthd.front.connections.limiter import ConnectionLimiter, ConnectionSlot, LimiterView
from hearthd.front.connections.open_sockets import OpenSockets
from hearthd.front.connections.strangers import UnauthenticatedConnection


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

    def connection_held(self, listener: str, peer: str) -> None:
        raise AssertionError("a limiter holds none")


def limiter(observer: Observer, max_connections: int = 8, strangers: int = 4, per_peer: int = 2) -> ConnectionLimiter:
    return ConnectionLimiter(
        "test",
        observer,
        max_connections=max_connections,
        max_strangers=strangers,
        max_strangers_per_peer=per_peer,
        timeout=10.0,
    )


def http_limiter(observer: Observer, max_connections: int, per_peer: int, reserve: int) -> ConnectionLimiter:
    """Returns a limiter as the HTTP listener uses it."""
    return ConnectionLimiter(
        "http", observer, max_connections=max_connections, max_strangers=max_connections,
        max_strangers_per_peer=per_peer, max_per_peer=per_peer, reserve=reserve, timeout=10.0,
    )  # fmt: skip


STEPS = st.lists(st.tuples(st.sampled_from(["admit", "prove", "wait", "release"]), st.integers(0, 5)), max_size=80)


def take(limits: ConnectionLimiter, slots: list[ConnectionSlot], step: str, number: int) -> None:
    if step == "admit":
        slot = limits.admit(f"10.0.0.{number}", lambda: None)
        if slot is not None:
            slots.append(slot)
    elif slots:
        slot = slots[number % len(slots)]
        {"prove": slot.mark_authenticated, "wait": slot.mark_unauthenticated, "release": slot.release}[step]()


@given(STEPS)
def test_limits_hold_after_every_step(steps: list[tuple[str, int]]) -> None:
    observer = Observer()
    limits = limiter(observer)
    slots: list[ConnectionSlot] = []
    for step, number in steps:
        if step == "wait":  # only for HTTP, whose limits on strangers are the same
            continue
        take(limits, slots, step, number)
        strangers = [each for each in limits.inspect().slots if each.stranger]
        assert len(limits) <= 8 and limits.strangers == len(strangers) <= 4
        assert max(Counter(each.peer for each in strangers).values(), default=0) <= 2
        assert observer.open == len(limits)


@given(STEPS)
def test_limits_of_http_hold_after_every_step_and_the_reserve_is_for_probes(steps: list[tuple[str, int]]) -> None:
    observer = Observer()
    limits = http_limiter(observer, max_connections=6, per_peer=3, reserve=1)
    slots: list[ConnectionSlot] = []
    for step, number in steps:
        take(limits, slots, step, number)
        view = limits.inspect()
        by_peer = Counter(each.peer for each in view.slots)
        assert len(limits) <= 7 and max(by_peer.values(), default=0) <= 4
        assert limits.strangers == sum(each.stranger for each in view.slots) == sum(view.strangers_by_peer.values())
        assert observer.open == len(limits) and view.by_peer == by_peer
    for slot in slots:
        slot.release()
    assert not len(limits) and not limits.strangers and not observer.open
    assert limits.inspect() == LimiterView(frozenset(), {}, {})


def test_the_connection_that_waits_longest_makes_room_and_one_at_work_does_not() -> None:
    observer, dropped = Observer(), []
    limits = http_limiter(observer, max_connections=4, per_peer=2, reserve=1)

    def admit(name: str, peer: str = "10.0.0.1") -> ConnectionSlot | None:
        return limits.admit(peer, lambda: dropped.append(name))

    first, second = admit("first"), admit("second")
    assert first is not None and second is not None
    first.mark_authenticated()
    first.mark_unauthenticated()  # now the youngest stranger
    third = admit("third")
    assert dropped == ["second"] and third is not None and not third.reserved
    first.mark_authenticated()
    third.mark_authenticated()
    probe = admit("probe")
    assert probe is not None and probe.reserved, "no connection waits"
    probe.mark_authenticated()
    assert admit("late") is None
    other = admit("other", "10.0.0.2")
    assert other is not None and not other.reserved
    assert dropped == ["second"] and observer.refused == {"address": 2}
    limits.evict("descriptors")
    limits.evict("descriptors")
    assert dropped == ["second", "other"] and observer.refused["descriptors"] == 1


def test_one_address_cannot_use_all_connections() -> None:
    observer = Observer()
    limits = http_limiter(observer, max_connections=8, per_peer=4, reserve=2)
    for _ in range(100):
        limits.admit("10.0.0.1", lambda: None)
    assert len(limits) == 4
    for number in range(8):
        slot = limits.admit(f"10.0.1.{number}", lambda: None)
        assert slot is not None and not slot.reserved
    assert len(limits) == 8 and observer.refused == {"address": 96, "strangers": 4}


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


def test_connections_with_a_credential_are_never_dropped() -> None:
    observer = Observer()
    limits = limiter(observer, max_connections=3)
    for _ in range(3):
        slot = limits.admit("10.0.0.1", lambda: None)
        assert slot is not None
        slot.mark_authenticated()
    assert limits.admit("10.0.0.2", lambda: None) is None
    assert observer.refused == {"full": 1}


def test_a_silent_stranger_is_dropped_and_one_with_a_credential_is_not() -> None:
    async def scenario() -> None:
        observer, over = Observer(), asyncio.Event()
        limits = limiter(observer)
        authenticated, silent = (limits.admit("10.0.0.1", over.set) for _ in range(2))
        assert authenticated is not None and silent is not None
        authenticated.expect(0.01)
        silent.expect(0.02)
        authenticated.mark_authenticated()
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
                    assert not sockets.disconnect(number, new[number] + 1, drops_unread=False), (
                        "another socket took the number"
                    )
                    assert sockets.disconnect(number, new[number], drops_unread=False)
                    assert client.recv(1) == b""
                _, gone = sockets.scan()
                assert number in gone
            assert sockets.find(number, new[number]) is None
        finally:
            sockets.close()


def test_reset_discards_unread_data_and_notifies_the_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        sockets = OpenSockets()
        try:
            accepted, _ = server.accept()
            with accepted:
                new, _ = sockets.scan()
                client.sendall(b"x" * 1000)
                assert connection.wait([accepted], 10)
                assert sockets.disconnect(accepted.fileno(), new[accepted.fileno()], drops_unread=True)
                with pytest.raises(OSError, match=r"not connected|reset"):
                    assert accepted.recv(1000) != b"x" * 1000
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
        finally:
            sockets.close()


def test_listening_sockets_are_found_by_port_and_path(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.create_server(("127.0.0.1", 0)),
        socket.socket(socket.AF_UNIX) as unix,
    ):
        unix.bind(path)
        unix.listen()
        sockets = OpenSockets()
        found = sockets.find_listeners({str(tcp.getsockname()[1]), path})
        try:
            assert {one.getsockname() for one in found} == {tcp.getsockname(), path}
            assert not {one.fileno() for one in found} & {tcp.fileno(), unix.fileno()}
        finally:
            sockets.close()
            for one in found:
                one.close()


# ---- connections that are held ----


def test_penalized_peers_are_held_until_their_turn_and_others_are_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sockets = OpenSockets()
        listening = sockets.find_listeners({str(server.getsockname()[1])})
        holding = AcceptFilter(sockets, listening)
        try:
            with contextlib.ExitStack() as stack:

                def connected() -> tuple[UnauthenticatedConnection, socket.socket]:
                    client = stack.enter_context(socket.create_connection(server.getsockname()))
                    accepted = stack.enter_context(server.accept()[0])
                    accepted.settimeout(10)
                    client.sendall(b"x")
                    new, _ = sockets.scan()
                    number = accepted.fileno()
                    return UnauthenticatedConnection(number, new[number], "127.0.0.1", "name", 0.0), accepted

                holding.hold(["127.0.0.1"])
                each, accepted = connected()
                assert holding.add(each) and each.held
                assert not connection.wait([accepted], 0.3)
                holding.admit_held([each], 100.0)
                assert not each.held and each.since == 100.0
                assert accepted.recv(10) == b"x"

                each, accepted = connected()
                assert holding.add(each)
                holding.hold(["192.0.2.1"])
                # Before the next admission is due, because the peer is no longer penalized.
                holding.admit_held([each], 100.01)
                assert not each.held and accepted.recv(10) == b"x"

                each, accepted = connected()
                assert not holding.add(each) and accepted.recv(10) == b"x"
                with pytest.raises(FileNotFoundError):
                    socket_filter.detach(accepted)  # connections of other peers have no filter
                holding.hold([])
                with pytest.raises(FileNotFoundError):
                    socket_filter.detach(server)
        finally:
            sockets.close()
            for one in listening:
                one.close()


def test_without_socket_filters_no_connection_is_held_and_the_log_says_so() -> None:
    class Refusing:
        family = socket.AF_INET
        asked = 0

        def setsockopt(self, *_: object) -> None:
            self.asked += 1
            raise PermissionError(errno.EPERM, "Operation not permitted")

    one, sockets = Refusing(), OpenSockets()
    try:
        holding = AcceptFilter(sockets, [one])  # type: ignore[list-item]
        with capture_logs() as lines:
            holding.hold(["10.0.0.1"])
            holding.hold(["10.0.0.2"])
        assert [line["event"] for line in lines] == ["no_socket_filter"] and one.asked == 1
        each = UnauthenticatedConnection(1, 1, "10.0.0.1", "name", 0.0)
        assert not holding.add(each) and not each.held
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
