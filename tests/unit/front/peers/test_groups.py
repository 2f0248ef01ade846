"""Groups over daemons: two fronts in one event loop over real connections, with scripted device processes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal, to_text
from hearth_proto.v1 import node_pb2
from hearthd.front.peers.frames import HEADER, encode
from hearthd.front.peers.groups import MAX_GROUPS
from hearthd.front.peers.leader import Leader
from hearthd.front.peers.link import CLOSE_TIMEOUT
from hearthd.front.peers.tickets import GroupMember, hello
from tests.support.front.fake_peers import TIMEOUT, FakeFront, Pair, fronts, pair, quick, refusal_in, run
from tests.support.timing import LATE

both_loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


def over(body: dict[str, Any], *words: str) -> Refusal:
    """Returns the refusal that operations of a lost group receive."""
    refusal = refusal_in(body)
    assert refusal.reason == Reason.COMMUNICATOR_FAILED and "rebuild" in refusal.fix, refusal
    assert all(word in refusal.message for word in words), refusal
    return refusal


@both_loops
def test_operations_run_in_order_on_one_communicator(loop: str) -> None:
    async def work() -> None:
        async with pair() as both:
            for number, link in enumerate(both.ranks):
                received = await link.wait_for("group")
                assert (received["rank"], received["ranks"], received["group"]) == (number, 2, both.group.hex())
            went = [await both.run(sequence) for sequence in range(1, 6)]
            for index, gos in enumerate(went, 1):
                assert [go["index"] for go in gos] == [index, index] and [go["rank"] for go in gos] == [0, 1]
                assert all(go["ranks"] == 2 and go["devices"] == [] and go["group"] == both.group.hex() for go in gos)
            (first,) = {gos[0]["comm"] for gos in went}
            (second,) = {gos[1]["comm"] for gos in went}
            assert second == f"{both.group.hex()}@1/{first}", "no name of another group's or of a local communicator"
            states = [group.state for group in (*both.first.groups, *both.second.groups)]
            assert states == ["ready", "ready"]

    run(work(), loop)


@pytest.mark.parametrize("how", ["answered", "lost", "cancelled", "closed"])
@pytest.mark.parametrize("slow", [0, 1])
def test_group_is_formed_when_the_processes_know_it(slow: int, how: str) -> None:
    """A first operation over a lane would overtake the announcement on the link."""

    async def work() -> None:
        first, second = FakeFront("a"), FakeFront("b")
        async with fronts(first, second):
            both = Pair(first, second)
            link, session, front = both.ranks[slow], both.sessions[slow], (first, second)[slow]
            link.answers_pings.clear()
            forming = asyncio.ensure_future(both.form())
            await link.pinged.wait()
            await asyncio.sleep(0)
            assert link.ops("group") and not forming.done()
            if how == "cancelled":
                forming.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await forming
                assert front.groups.of(session) == [] and link.ops("ungroup")
                return
            if how == "lost":
                link.loss = Refusal(Reason.DEVICE_LOST, "the process is lost")
            if how == "closed":
                session.closing = True
                front.groups.on_session_closed(session.id)
            link.answers_pings.set()
            if how == "closed":
                with pytest.raises(Refusal, match="session"):
                    await forming
            else:
                await forming
                await both.run(1)

    run(work())


def test_the_largest_numbers_that_a_command_can_hold() -> None:
    async def work() -> None:
        async with pair() as both:
            both.present(2**64 - 1, timeout=(2**64 - 1) / 1e9, count=2**64 - 1, root=2**32 - 1)
            for link in both.ranks:
                await link.wait_for("go", sequence=2**64 - 1)

    run(work())


def test_ranks_that_do_not_match() -> None:
    async def work() -> None:
        async with pair() as both:
            both.ranks[0].present(both.sessions[0], both.group, count=8)
            both.ranks[1].present(both.sessions[1], both.group, count=9)
            for link in both.ranks:
                refusal = refusal_in(await link.wait_for("fail", sequence=1))
                assert refusal.reason == Reason.COLLECTIVE_MISMATCH and refusal.details["field"] == "count"
                assert refusal.details["odd_rank"] == "1" and refusal.details["requested"] == "9"
            await both.run(2)

    run(work())


@pytest.mark.parametrize("odd", [0, 1])
def test_a_rank_that_withdraws(odd: int) -> None:
    async def work() -> None:
        async with pair() as both:
            other, link, session = both.ranks[1 - odd], both.ranks[odd], both.sessions[odd]
            other.present(both.sessions[1 - odd], both.group, timeout=60)
            status = to_text(Refusal(Reason.OUT_OF_BOUNDS, "out\nof bounds"))
            channel = session.channels[link.ordinal].number
            body = {"op": "withdraw", "channel": channel, "group": both.group.hex(), "devices": [], "sequence": 1}
            link.send_to_front({**body, "status": status})
            refusal = refusal_in(await other.wait_for("fail", sequence=1))
            assert refusal.reason == Reason.COMMUNICATOR_FAILED and refusal.details["failed"] == str(odd)
            assert link.ops("fail") == []
            # A group that this session does not have.
            link.send_to_front({**body, "sequence": 7, "group": "ab" * 16, "status": status})
            link.send_to_front({**body, "sequence": 2, "status": "%%"})
            await both.run(3)

    run(work())


def test_operation_queued_after_another_is_launched_after_it() -> None:
    async def work() -> None:
        async with pair() as both:
            for number, rows in enumerate((((1, []), (2, [[[], 1]])), ((2, []),))):
                link, session = both.ranks[number], both.sessions[number]
                for sequence, predecessors in rows:
                    link.present(session, both.group, sequence, predecessors=predecessors)
            both.ranks[1].present(both.sessions[1], both.group, 1)
            for link in both.ranks:
                first, second = [await link.wait_for("go", sequence=sequence) for sequence in (1, 2)]
                assert (first["index"], second["index"]) == (1, 2)

    run(work())


@pytest.mark.parametrize("late", [0, 1])
def test_rank_that_never_presents(late: int) -> None:
    async def work() -> None:
        async with pair() as both:
            survivor = both.ranks[1 - late]
            started_at = asyncio.get_running_loop().time()
            survivor.present(both.sessions[1 - late], both.group, timeout=0.2)
            refusal = refusal_in(await survivor.wait_for("fail"))
            assert 0.15 < asyncio.get_running_loop().time() - started_at < 0.2 + LATE
            assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and refusal.details["missing"] == str(late)
            both.ranks[late].present(both.sessions[late], both.group)
            assert refusal_in(await both.ranks[late].wait_for("fail")).reason == Reason.COLLECTIVE_TIMEOUT
            await both.run(2)

    run(work())


@pytest.mark.parametrize("lost", [0, 1])
def test_a_process_that_is_lost_is_replaced(lost: int) -> None:
    async def work() -> None:
        async with pair() as both:
            first = await both.run(1)
            survivor = both.ranks[1 - lost]
            survivor.present(both.sessions[1 - lost], both.group, 2)  # the part of the lost rank will not be presented
            if lost == 0:
                await wait_until_presented(both)
            front = (both.first, both.second)[lost]
            replacement = front.replace(0)
            aborted = await survivor.wait_for("abort")
            assert aborted["comm"] == first[1 - lost]["comm"] and "SIGKILL" in aborted["reason"]
            assert refusal_in(aborted).reason == Reason.COMMUNICATOR_FAILED
            failed = refusal_in(await survivor.wait_for("fail", sequence=2))
            assert failed.reason == Reason.COMMUNICATOR_FAILED and "SIGKILL" in failed.message
            replacement.open(both.sessions[lost])
            received = await replacement.wait_for("group")
            assert received["rank"] == lost
            again = await both.run(3)
            assert again[0]["comm"] != first[0]["comm"] and again[0]["index"] == 1

    run(work())


async def wait_until_presented(both: Pair) -> None:
    """Waits until the first front has received an operation of the second front."""
    (leader,) = both.first.groups
    assert isinstance(leader, Leader)
    async with asyncio.timeout(TIMEOUT):
        while not len(both.first.router.coordinator.matcher):  # noqa: ASYNC110 - there is no notification
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("dead", [0, 1])
@both_loops
def test_a_daemon_that_is_lost_is_noticed_immediately(dead: int, loop: str) -> None:
    async def work() -> None:
        async with pair() as both:
            await both.run(1)
            survivor, session = both.ranks[1 - dead], both.sessions[1 - dead]
            survivor.present(session, both.group, 2)
            if dead == 0:
                await wait_until_presented(both)
            lost_at = asyncio.get_running_loop().time()
            links = (both.first, both.second)[dead].groups.links
            assert links
            for link in links:
                link.abort("the process was killed")
            over_refusal = refusal_in(await survivor.wait_for("fail", sequence=2))
            assert over_refusal.reason == Reason.COMMUNICATOR_FAILED and f"node {dead}" in over_refusal.message.lower()
            aborted = refusal_in(await survivor.wait_for("abort"))
            assert aborted.reason == Reason.COMMUNICATOR_FAILED and f"node {dead}" in aborted.message.lower()
            assert asyncio.get_running_loop().time() - lost_at < LATE
            survivor.present(session, both.group, 3)
            over(survivor.ops("fail")[0], "over", f"node {dead}")  # immediately, because the front knows the loss
            (membership,) = (both.first, both.second)[1 - dead].groups
            assert membership.state == "failed" and f"node {dead}" in membership.info().detail
            again = Pair(both.first, both.second)
            await again.form()
            await again.run(1)

    run(work(), loop)


def test_a_daemon_that_hangs_is_noticed_by_its_silence() -> None:
    async def work() -> None:
        first, second = FakeFront("a", accept=quick()), FakeFront("b", make=quick(heartbeat=100, silence=100))
        async with fronts(first, second):
            both = Pair(first, second)
            await both.form()
            both.ranks[0].present(both.sessions[0], both.group)
            refusal = refusal_in(await both.ranks[0].wait_for("fail"))
            assert refusal.reason == Reason.COMMUNICATOR_FAILED and "no message arrived" in refusal.message

    run(work())


# ---- joining ----


def test_invalid_tickets_are_refused() -> None:
    async def work() -> None:
        async with pair() as both:
            session = both.second.session(1)
            errors = []
            for group, secret in ((both.group, b"x" * 16), (b"g" * 16, both.secret), (b"g" * 16, bytes(16))):
                with pytest.raises(Refusal) as error:
                    ticket = both.first.ticket(secret)
                    await both.second.groups.join(session, group, 1, both.members, ticket, 20.0)
                errors.append(str(error.value))
                assert error.value.reason == Reason.UNAUTHENTICATED
            assert len(set(errors)) == 1, "the error does not reveal whether the group or the secret is wrong"
            await both.run(1)

    run(work())


def test_join_that_contradicts_the_group_is_refused() -> None:
    async def work() -> None:
        first, second = FakeFront("a"), FakeFront("b")
        async with fronts(first, second):
            members = (GroupMember(0, 0), GroupMember(1, 0), GroupMember(2, 1))
            group, secret = await first.groups.create(first.session(0), members, 20.0)
            ticket = first.ticket(secret)
            with pytest.raises(Refusal, match="device 0 of node 1") as error:
                await second.groups.join(second.session(0), group, 1, members[:1] + members[:0:-1], ticket, 20.0)
            assert error.value.reason == Reason.COLLECTIVE_MISMATCH
            await second.groups.join(second.session(0), group, 1, members, ticket, 20.0)
            assert [membership.state for membership in first.groups] == ["forming"]
            with pytest.raises(Refusal, match="has joined the group already") as error:
                await second.groups.join(second.session(0), group, 1, members, ticket, 20.0)
            assert error.value.reason == Reason.HANDLE_IN_USE
            await second.groups.join(second.session(1), group, 2, members, ticket, 20.0)
            assert [membership.state for membership in first.groups] == ["ready"]

    run(work())


def test_incomplete_group_times_out() -> None:
    async def work() -> None:
        first, second = FakeFront("a"), FakeFront("b")
        async with fronts(first, second):
            session, other = first.session(0), second.session(0)
            members = (GroupMember(0, 0), GroupMember(1, 0), GroupMember(2, 0))
            group, secret = await first.groups.create(session, members, 30.0)
            await second.groups.join(other, group, 1, members, first.ticket(secret), 30.0)
            (leader,) = first.groups
            assert isinstance(leader, Leader)
            leader.limit_joining(0.3)
            second.links[0].present(other, group)
            refusal = refusal_in(await second.links[0].wait_for("fail"))
            assert refusal.reason in (Reason.COLLECTIVE_TIMEOUT, Reason.COMMUNICATOR_FAILED)
            assert "nodes 2 did not join" in refusal.message
            for front, of_front in ((first, session), (second, other)):
                front.links[0].present(of_front, group, 2)
                refusal = refusal_in(await front.links[0].wait_for("fail", sequence=2))
                assert refusal.reason == Reason.COLLECTIVE_TIMEOUT and refusal.details["missing"] == "2"
            with pytest.raises(Refusal) as error:
                await second.groups.join(second.session(1), group, 2, members, first.ticket(secret), 20.0)
            assert error.value.reason == Reason.UNAUTHENTICATED

    run(work())


def test_addresses_are_tried_in_turn() -> None:
    async def work() -> None:
        # An address that does not answer takes the whole window. `patient` is for machines that are too busy to connect
        # within the window of `second`.
        first, second, third = FakeFront("a"), FakeFront("b", window=0.1), FakeFront("c")
        patient = FakeFront("d", window=7.0)
        async with fronts(first, second, third, patient):
            members = (GroupMember(0, 0), GroupMember(1, 0))
            group, secret = await first.groups.create(first.session(0), members, 30.0)
            assert third.groups.port is not None and first.groups.port is not None
            await third.groups.port.open()
            stranger, good = third.groups.port.addresses[0], first.groups.port.addresses[0]
            dead = "127.0.0.1:1"
            for addresses, reason in (
                ([dead], Reason.COMMUNICATOR_FAILED), ([stranger], Reason.UNAUTHENTICATED),
                ([dead, stranger], Reason.UNAUTHENTICATED),
            ):  # fmt: skip
                for front in (second, patient):
                    with pytest.raises(Refusal) as error:
                        ticket = first.ticket(secret, addresses=addresses)
                        await front.groups.join(front.session(0), group, 1, members, ticket, 30.0)
                    if error.value.reason == reason:
                        break
                assert error.value.reason == reason
                if reason == Reason.COMMUNICATOR_FAILED:
                    assert dead in error.value.message and error.value.details["addresses"] == dead
                    assert "collectives.listen" in error.value.fix or "CreateGroup" in error.value.fix
            for front in (second, patient):
                group, secret = await first.groups.create(first.session(0), members, 30.0)
                session, ticket = front.session(0), first.ticket(secret, addresses=[dead, stranger, good])
                try:
                    await front.groups.join(session, group, 1, members, ticket, 30.0)
                    break
                except Refusal:
                    if front is patient:
                        raise
            assert front.groups.of(session)[0].state == "ready"

    run(work())


def test_a_coordinator_that_never_answers() -> None:
    async def work() -> None:
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        second = FakeFront("b")
        async with fronts(second):
            session = second.session(0)
            ticket = node_pb2.GroupTicket(addresses=[f"127.0.0.1:{port}"], secret=b"s" * 16)
            members = (GroupMember(0, 0), GroupMember(1, 0))
            with pytest.raises(Refusal, match=r"could not be reached within 0\.2 s") as error:
                await second.groups.join(session, b"g" * 16, 1, members, ticket, 0.2)
            assert error.value.reason == Reason.COLLECTIVE_TIMEOUT
            joining = asyncio.create_task(second.groups.join(session, b"g" * 16, 1, members, ticket, 30.0))
            await asyncio.sleep(0)
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
            assert not list(second.groups) and not second.groups.joining
        silent.close()

    run(work())


def test_refused_connection_counts_until_it_is_closed() -> None:
    async def work() -> None:
        front = FakeFront("a")
        async with fronts(front):
            await front.groups.create(front.session(0), (GroupMember(0, 0), GroupMember(1, 0)), 20.0)
            port = front.groups.port
            assert port is not None
            host, _, number = port.addresses[0].rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(number))
            writer.write(encode(hello(b"g" * 16, 1, b"s" * 16, (GroupMember(0, 0), GroupMember(1, 0)))))
            (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
            assert b"refused" in await reader.readexactly(size)
            assert port.unauthenticated.total() == 1, "the coordinator has not closed the connection"
            begin = asyncio.get_running_loop().time()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert asyncio.get_running_loop().time() - begin < CLOSE_TIMEOUT + LATE
            writer.close()
            async with asyncio.timeout(TIMEOUT):
                while port.unauthenticated:  # noqa: ASYNC110 - there is no notification
                    await asyncio.sleep(0.001)

    run(work())


# ---- sessions ----


def test_two_sessions_of_one_daemon() -> None:
    async def work() -> None:
        front = FakeFront("a")
        async with fronts(front):
            both = Pair(front, front)
            await both.form()
            both.present(1)
            gos = [await front.links[0].wait_for("go", rank=rank) for rank in (0, 1)]
            assert gos[0]["channel"] != gos[1]["channel"] and gos[0]["comm"] != gos[1]["comm"]
            front.groups.on_session_closed(both.sessions[1].id)
            front.links[0].present(both.sessions[0], both.group, 2)
            over(await front.links[0].wait_for("fail", sequence=2), "ode 1 ")

    run(work())


def test_a_session_takes_part_once() -> None:
    async def work() -> None:
        async with pair() as both:
            ticket = both.first.ticket(both.secret)
            for front, session in zip((both.first, both.second), both.sessions, strict=True):
                with pytest.raises(Refusal) as error:
                    await front.groups.join(session, both.group, 1, both.members, ticket, 20.0)
                assert error.value.reason == Reason.HANDLE_IN_USE
            await both.run(1)

    run(work())


def test_group_of_another_session_is_reported_as_absent() -> None:
    async def work() -> None:
        async with pair() as both:
            stranger = both.first.session(0)
            both.ranks[0].present(stranger, both.group)
            absent, hidden = refusal_in(await both.ranks[0].wait_for("fail")), b"g" * 16
            both.ranks[0].present(stranger, hidden)
            missing = refusal_in(await both.ranks[0].wait_for("fail"))
            assert absent.reason == missing.reason == Reason.INVALID_HANDLE
            assert absent.message.replace(both.group.hex(), "") == missing.message.replace(hidden.hex(), "")
            for group in (both.group, hidden):
                with pytest.raises(Refusal) as error:
                    both.first.groups.leave(stranger, group)
                assert error.value.reason == Reason.INVALID_HANDLE
            assert both.first.groups.of(stranger) == []
            await both.run(1)

    run(work())


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("way", ["leave", "session"])
def test_leaving_rank_ends_group_for_all(node: int, way: str) -> None:
    async def work() -> None:
        async with pair() as both:
            await both.run(1)
            remaining, leaving = both.ranks[1 - node], both.ranks[node]
            remaining.present(both.sessions[1 - node], both.group, 2)
            if node == 0:
                await wait_until_presented(both)
            front, session = (both.first, both.second)[node], both.sessions[node]
            if way == "leave":
                front.groups.leave(session, both.group)
            else:
                front.groups.on_session_closed(session.id)
            await leaving.wait_for("ungroup", group=both.group.hex())
            assert refusal_in(await leaving.wait_for("abort")).reason == Reason.COMMUNICATOR_FAILED
            assert refusal_in(await remaining.wait_for("abort")).reason == Reason.COMMUNICATOR_FAILED
            assert f"node {node}" in refusal_in(await remaining.wait_for("fail", sequence=2)).message.lower()
            remaining.present(both.sessions[1 - node], both.group, 3)
            over(await remaining.wait_for("fail", sequence=3), f"node {node} has left it")
            leaving.present(session, both.group, 2)
            assert refusal_in(await leaving.wait_for("fail", sequence=2)).reason == Reason.INVALID_HANDLE
            assert front.groups.of(session) == [] and not both.first.groups.leaders
            (both.first, both.second)[1 - node].groups.leave(both.sessions[1 - node], both.group)
            assert not list(both.first.groups) and not list(both.second.groups)
            assert not both.second.groups.followers

    run(work())


def test_number_of_groups_of_a_session_is_bounded() -> None:
    async def work() -> None:
        front = FakeFront("a")
        async with fronts(front):
            session = front.session(0)
            groups = [(await front.groups.create(session, (GroupMember(0, 0),), 20.0))[0] for _ in range(MAX_GROUPS)]
            with pytest.raises(Refusal, match=f"the maximum is {MAX_GROUPS}") as error:
                await front.groups.create(session, (GroupMember(0, 0),), 20.0)
            assert error.value.reason == Reason.QUOTA_EXCEEDED
            front.groups.leave(session, groups[0])
            await front.groups.create(session, (GroupMember(0, 0),), 20.0)
            await front.groups.create(front.session(0), (GroupMember(0, 0),), 20.0)

    run(work())


def test_group_of_one_node_needs_no_peer() -> None:
    async def work() -> None:
        front = FakeFront("a")
        async with fronts(front):
            session = front.session(0, 1)
            group, _ = await front.groups.create(session, (GroupMember(0, 1), GroupMember(0, 0)), 0.0)
            for link in front.links:
                link.present(session, group)
            assert [(await link.wait_for("go"))["rank"] for link in front.links] == [1, 0]

    run(work())


def test_no_groups_without_a_listener() -> None:
    async def work() -> None:
        front = FakeFront("a", listen="")
        async with fronts(front):
            with pytest.raises(Refusal, match=r"collectives\.listen") as error:
                await front.groups.create(front.session(0), (GroupMember(0, 0), GroupMember(1, 0)), 20.0)
            assert error.value.reason == Reason.UNSUPPORTED and not list(front.groups)

    run(work())


def test_peers_are_notified_of_the_end_of_a_daemon() -> None:
    async def work() -> None:
        async with pair() as both:
            await both.run(1)
            await both.first.stop()
            await both.ranks[1].wait_for("abort")
            both.ranks[1].present(both.sessions[1], both.group, 2)
            over(await both.ranks[1].wait_for("fail"), "its daemon is stopping")

    run(work())


def test_batch_too_large_for_a_peer_message() -> None:
    async def work() -> None:
        async with pair() as both:
            link, session = both.ranks[1], both.sessions[1]
            entry = {"kind": "broadcast", "count": 1, "dtype": "float32", "reduce": "", "root": 0, "peer": 0}
            body = {"op": "present", "channel": session.channels[0].number, "group": both.group.hex(), "devices": []}
            link.send_to_front({**body, "sequence": 1, "timeout": 5.0, "signature": [entry] * 20_000})
            refusal = refusal_in(await link.wait_for("fail", sequence=1))
            assert refusal.reason == Reason.MESSAGE_TOO_LARGE
            await both.run(2)

    run(work())
