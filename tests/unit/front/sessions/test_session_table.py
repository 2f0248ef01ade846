"""Sessions and leases, with a clock that the test advances."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.sessions.session import SessionEnd
from hearthd.front.sessions.session_table import SessionTable, negotiate
from hearthd.front.tenancy.tenants import Caller, Tenant
from tests.support.front.fixture import run


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def table(clock: Clock, lease: float = 30.0, limit: int = 8) -> SessionTable:
    return SessionTable(lease, limit, clock)


def test_a_session_lives_for_its_lease_after_its_last_use() -> None:
    async def scenario() -> None:
        clock = Clock()
        sessions = table(clock)
        session, token = sessions.open("me", "1")
        clock.now += 29.9
        assert sessions.find(token) is session  # this renews the lease
        clock.now += 29.9
        assert sessions.expired() == []
        assert 0.09 < sessions.lease_left(session) < 0.11
        with sessions.keep_alive(session):
            clock.now += 1000
            assert sessions.expired() == []
            assert sessions.lease_left(session) == 30
            assert sessions.find(token) is session
        clock.now += 29.9
        assert sessions.expired() == []
        clock.now += 0.2
        assert sessions.expired() == [session]
        with pytest.raises(Refusal) as error:
            sessions.find(token)
        assert error.value.reason == Reason.SESSION_EXPIRED
        await sessions.close(session, "test")
        assert len(sessions) == 0 and sessions.expired() == [] and sessions.emptied.is_set()

    run(scenario())


def test_ended_sessions_are_counted_by_tenant_and_reason() -> None:
    async def scenario() -> None:
        clock = Clock()
        sessions = table(clock)
        lab = Tenant("lab")
        brief, _ = sessions.open("me", "1", Caller(lab, expires=time.time() + 5))
        lasting, _ = sessions.open("me", "1", Caller(lab, expires=time.time() + 1000))
        unnamed, _ = sessions.open("me", "1")
        clock.now += 10
        assert sessions.expired() == [brief] and brief.expiry_cause == SessionEnd.CREDENTIAL
        with sessions.keep_alive(lasting):
            clock.now += 1000
            assert lasting.expiry_cause == SessionEnd.CREDENTIAL
            assert lasting in sessions.expired(), "although it is in use"
        assert unnamed.expiry_cause == SessionEnd.LEASE
        for session in (brief, lasting, unnamed):
            await sessions.close(session, "test", cause=session.expiry_cause)
            await sessions.close(session, "once is enough", cause=SessionEnd.STOP)
        accounts = {account.tenant.name: account for account in sessions.accounts}
        assert accounts["lab"].opened == 2 and accounts["lab"].closed == {SessionEnd.CREDENTIAL: 2}
        assert accounts["default"].opened == 1 and accounts["default"].closed == {"lease": 1}

    run(scenario())


def test_client_is_told_that_its_credential_has_expired() -> None:
    async def scenario() -> None:
        clock = Clock()
        sessions = table(clock)
        session, token = sessions.open("me", "1", Caller(Tenant("lab"), "token ci", expires=time.time() + 5))
        unused, unused_token = sessions.open("me", "1", Caller(Tenant("lab"), "token long", expires=time.time() + 500))
        clock.now += 40
        messages = []
        for moment in ("before the session is closed", "afterwards"):
            with pytest.raises(Refusal, match=r"its credential \(token ci\) has expired") as ended:
                sessions.find(token)
            assert ended.value.reason == Reason.SESSION_EXPIRED and "with a valid credential" in ended.value.fix, moment
            messages.append(str(ended.value))
            await sessions.expire(session)
        assert messages[0] == messages[1]
        assert unused.expiry_reason == "its lease expired"
        await sessions.expire(unused)
        with pytest.raises(Refusal, match="has ended: its lease expired"):
            sessions.find(unused_token)

    run(scenario())


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (SessionEnd.OPERATOR, "has ended: tenant ops ended it"),
        (SessionEnd.CLIENT, "unknown or expired session"),
    ],
)
def test_later_calls_name_the_end_of_a_session_that_its_client_did_not_close(cause: SessionEnd, message: str) -> None:
    async def scenario() -> None:
        sessions = table(Clock())
        session, token = sessions.open("me", "1")
        await sessions.close(session, "tenant ops ended it", cause=cause)
        with pytest.raises(Refusal, match=message) as ended:
            sessions.find(token)
        assert ended.value.reason == Reason.SESSION_EXPIRED

    run(scenario())


def test_tokens_are_secret_and_distinct() -> None:
    async def scenario() -> None:
        sessions = table(Clock())
        opened = [sessions.open("me", "1") for _ in range(8)]
        assert len({token for _, token in opened}) == len({session.id for session, _ in opened}) == 8
        for session, token in opened:
            assert sessions.find(token) is session
            assert token not in repr(session) and session.id not in token
        for wrong in ("", "x", opened[0][1][:-1], opened[0][0].id, "\ud800"):
            with pytest.raises(Refusal):
                sessions.find(wrong)

    run(scenario())


def test_limits_and_draining_refuse() -> None:
    async def scenario() -> None:
        sessions = table(Clock(), limit=2)
        first, _ = sessions.open("a", "")
        sessions.open("b", "")
        with pytest.raises(Refusal) as error:
            sessions.open("c", "")
        assert error.value.reason == Reason.SESSION_LIMIT
        assert error.value.details["allowed"] == "2"
        await sessions.close(first, "test")
        sessions.open("c", "")
        sessions.draining = True
        with pytest.raises(Refusal) as error:
            sessions.open("d", "")
        assert error.value.reason == Reason.DRAINING
        assert error.value.retry_after_s

    run(scenario())


def test_close_notifies_and_waits() -> None:
    async def scenario() -> None:
        told: list[str] = []
        sessions = SessionTable(30, 8, Clock(), told.append)
        session, token = sessions.open("a", "")

        class Slow:
            refusal: Refusal | None = None
            done = asyncio.Event()

            async def close(self, refusal: Refusal) -> None:
                self.refusal = refusal
                await self.done.wait()

        slow = Slow()
        session.channels[0] = slow  # type: ignore[assignment]
        closing = asyncio.create_task(sessions.close(session, "test"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert slow.refusal is not None and slow.refusal.reason == Reason.SESSION_EXPIRED
        assert told == [session.id] and not closing.done()
        with pytest.raises(Refusal):
            sessions.find(token)
        slow.done.set()
        await closing

    run(scenario())


@given(st.integers(0, 5), st.integers(0, 5))
def test_negotiation(minimum: int, maximum: int) -> None:
    speaks = (minimum, maximum) == (0, 0) or minimum <= 1 <= maximum
    try:
        assert negotiate(minimum, maximum) == 1 and speaks
    except Refusal as refusal:
        assert not speaks
        assert refusal.reason == Reason.VERSION_UNSUPPORTED
        assert f"{minimum} to {maximum}" in refusal.message and "1 to 1" in refusal.message
