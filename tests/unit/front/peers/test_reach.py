"""The answers about the addresses of a ticket reveal only whether the group's coordinator was reached."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from hearth_proto.reasons import Reason, Refusal, to_text
from hearth_proto.v1 import node_pb2
from hearthd.front.peers import targets
from hearthd.front.peers.frames import encode
from hearthd.front.peers.tickets import GroupMember
from tests.support.front.fake_peers import FakeFront, fronts, run
from tests.support.timing import LATE

WINDOW = 0.3
"""Time, in seconds, for each address. An address that fails sooner takes as long, so that the time reveals nothing
about it."""
MEMBERS = (GroupMember(0, 0), GroupMember(1, 0))


async def join(front: FakeFront, addresses: list[str], pin: bytes = b"", time_limit: float = 30.0) -> tuple[Any, float]:
    """Returns the refusal of the session, and the seconds until it arrived."""
    ticket = node_pb2.GroupTicket(addresses=addresses, secret=b"s" * 16, certificate_sha256=pin)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    with pytest.raises(Refusal) as error:
        await front.groups.join(front.session(0), b"g" * 16, 1, MEMBERS, ticket, time_limit)
    return error.value, loop.time() - begin


@contextlib.asynccontextmanager
async def answering(behaviour: str) -> AsyncIterator[str]:
    """Yields an address at which something other than a coordinator listens, or nothing."""

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if behaviour == "speaks":
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        elif behaviour == "speaks frames":
            writer.write(encode({"t": "hello"}))
        elif behaviour == "refuses in nonsense":
            writer.write(encode({"t": "refused", "status": "////"}))
        if behaviour != "hangs up":
            await reader.read()
        writer.close()

    if behaviour == "closed":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            yield f"127.0.0.1:{unused.getsockname()[1]}"
        return
    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


KINDS = ["closed", "silent", "hangs up", "speaks", "speaks frames", "refuses in nonsense"]


@pytest.mark.parametrize("pin", [b"", b"p" * 32], ids=["clear", "tls"])
def test_all_unreachable_targets_give_the_same_error(pin: bytes) -> None:
    async def work() -> None:
        front = FakeFront("b", window=WINDOW)
        errors, times, logged = set(), [], []
        async with fronts(front):
            for kind in KINDS:
                with structlog.testing.capture_logs() as logs:
                    async with answering(kind) as address:
                        refusal, seconds = await join(front, [address], pin)
                assert refusal.reason == Reason.COMMUNICATOR_FAILED and refusal.details["addresses"] == address
                errors.add((str(refusal).replace(address, "?"), str(refusal.details).replace(address, "?")))
                times.append(seconds)
                logged += [entry["why"] for entry in logs if entry["event"] == "peer_unreachable"]
        assert len(errors) == 1, errors
        assert min(times) >= WINDOW * 0.99 and max(times) < WINDOW + LATE, times
        assert len(logged) == len(KINDS) and len(set(logged)) > 1, "the log states the cause"

    run(work())


def test_attempts_are_limited_by_address_and_in_total() -> None:
    async def work() -> None:
        front = FakeFront("b", window=WINDOW)
        async with fronts(front), answering("closed") as one, answering("silent") as two:
            refusal, seconds = await join(front, [one, two])
            assert 2 * WINDOW * 0.99 <= seconds < 2 * WINDOW + LATE and refusal.reason == Reason.COMMUNICATOR_FAILED
            refusal, seconds = await join(front, [one, two, one, one], time_limit=0.2)
            assert 0.19 < seconds < 0.2 + LATE and refusal.reason == Reason.COLLECTIVE_TIMEOUT
            assert "within 0.2 s" in refusal.message and refusal.message.count(one) == 1, "each address once"

    run(work())


def test_forbidden_addresses_are_not_contacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_resolve_host", lambda host: {"inside": ["10.0.0.5"]}.get(host, []))

    async def work() -> None:
        touched: list[Any] = []
        server = await asyncio.start_server(lambda *both: touched.append(both), "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        front, patient = (FakeFront("b", window=window, peers=("127.0.0.2",)) for window in (WINDOW, 2 * LATE))
        async with fronts(front, patient):
            refusal, seconds = await join(patient, [address])
            assert refusal.reason == Reason.PERMISSION_DENIED and seconds < LATE
            assert refusal.details == {"setting": "collectives.peers", "requested": address}
            assert f'[collectives] peers = ["auto", "{address}"]' in refusal.fix
            assert patient.refused == [address] and not touched
            names = [await join(front, [name]) for name in ("inside:22", "nowhere:22")]
            texts = {
                str(refusal).replace(name, "?") for (refusal, _), name in zip(names, ("inside", "nowhere"), strict=True)
            }
            assert len(texts) == 1, "the error does not reveal which names exist"
            assert all(WINDOW * 0.99 <= seconds < WINDOW + LATE for _, seconds in names)
        server.close()

    run(work())


def test_allowed_addresses_are_tried_and_others_named() -> None:
    async def work() -> None:
        first, second, patient = FakeFront("a"), FakeFront("b", window=WINDOW), FakeFront("c", window=2 * LATE)
        async with fronts(first, second, patient), answering("closed") as dead:
            refusal, _ = await join(second, ["10.0.0.5:7424", dead])
            assert refusal.reason == Reason.COMMUNICATOR_FAILED
            assert refusal.details["not_allowed"] == "10.0.0.5:7424" and second.refused == ["10.0.0.5:7424"]
            group, secret = await first.groups.create(first.session(0), MEMBERS, 30.0)
            assert first.groups.port is not None
            good = first.groups.port.addresses[0]
            ticket = first.ticket(secret, addresses=["10.0.0.5:7424", good])
            await patient.groups.join(patient.session(0), group, 1, MEMBERS, ticket, 30.0)
            assert patient.refused == ["10.0.0.5:7424"], "the refusal is recorded"

    run(work())


def test_connection_goes_to_the_checked_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name resolves to another address at each lookup. The connection goes to the address of the first lookup,
    which was checked."""
    answers = [["127.0.0.1"], ["127.0.0.9"], ["127.0.0.9"]]
    monkeypatch.setattr(targets, "_resolve_host", lambda host: answers.pop(0))

    async def work() -> None:
        first, second = FakeFront("a"), FakeFront("b", peers=("127.0.0.1",), window=2 * LATE)
        async with fronts(first, second):
            group, secret = await first.groups.create(first.session(0), MEMBERS, 30.0)
            assert first.groups.port is not None
            port = first.groups.port.addresses[0].rpartition(":")[2]
            ticket = first.ticket(secret, addresses=[f"moves.example:{port}"])
            session = second.session(0)
            await second.groups.join(session, group, 1, MEMBERS, ticket, 30.0)
            assert second.groups.of(session)[0].state == "ready" and len(answers) == 2

    run(work())


def test_a_long_refusal_of_a_peer_is_cut_short() -> None:
    words = Refusal(
        Reason.HANDLE_IN_USE, "x\n" * 9000, fix="y" * 9000, details={f"k{n}": "z" * 9000 for n in range(99)}
    )

    async def work() -> None:

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            short = Refusal(words.reason, words.message, fix=words.fix, details=dict(list(words.details.items())[:2]))
            status = to_text(short)
            writer.write(encode({"t": "refused", "status": status}))
            await reader.read()
            writer.close()

        server = await asyncio.start_server(meet, "127.0.0.1", 0)
        front = FakeFront("b", window=2 * LATE)
        async with fronts(front):
            refusal, _ = await join(front, [f"127.0.0.1:{server.sockets[0].getsockname()[1]}"])
        assert refusal.reason == Reason.HANDLE_IN_USE and len(refusal.message) == len(refusal.fix) == 1000
        assert "\n" not in refusal.message and set(map(len, refusal.details.values())) == {1000}
        server.close()

    run(work())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_over_ipv6(loop: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this host has no IPv6")

    async def work() -> None:
        first, second = FakeFront("a", listen="[::1]:0"), FakeFront("b", peers=("::1",))
        async with fronts(first, second):
            group, secret = await first.groups.create(first.session(0), MEMBERS, 20.0)
            session = second.session(0)
            await second.groups.join(session, group, 1, MEMBERS, first.ticket(secret), 20.0)
            assert second.groups.of(session)[0].state == "ready"

    run(work(), loop)
