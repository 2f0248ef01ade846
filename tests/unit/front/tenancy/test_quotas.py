"""Quotas of a tenant: sessions, queued work and device time."""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2, node_pb2
from hearthd.front.sessions import tenant_accounts
from hearthd.front.sessions.session_table import SessionTable
from hearthd.front.sessions.tenant_accounts import TenantAccounts
from hearthd.front.tenancy.tenants import EVERYONE, Caller, Quotas, Tenant
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fixture import Front, ended, front, refused, run, until

SMALL = Tenant("small", quotas=Quotas(sessions=2, gpu_seconds=1.5, queued_commands=3))


def test_sessions_are_counted_by_tenant() -> None:
    async def scenario() -> None:
        sessions = SessionTable(30, 8)
        caller = Caller(SMALL)
        first, _ = sessions.open("a", "", caller)
        sessions.open("b", "", caller)
        with pytest.raises(Refusal) as error:
            sessions.open("c", "", caller)
        assert error.value.reason == Reason.QUOTA_EXCEEDED and error.value.retry_after_s
        assert error.value.details == {"quota": "sessions", "used": "2", "allowed": "2"}
        sessions.open("d", "")  # another tenant
        await sessions.close(first, "test")
        third, _ = sessions.open("e", "", caller)
        assert third.queue is sessions.accounts.of(SMALL).queue and third.tenant is SMALL
        assert third.queue is not sessions.accounts.of(EVERYONE).queue

    run(scenario())


def test_time_is_kept_by_session_and_tenant() -> None:
    async def scenario() -> None:
        sessions = SessionTable(30, 8)
        told: list[str] = []
        sessions.accounts.on_exhausted = lambda account: told.append(account.tenant.name)
        first, _ = sessions.open("a", "", Caller(SMALL))
        other, _ = sessions.open("b", "")
        sessions.accounts.add_device_time(first.id, 10**9)
        sessions.accounts.add_device_time(other.id, 10**12)
        await sessions.close(first, "test")
        # Device time that the process reports after the close counts as well.
        sessions.accounts.add_device_time(first.id, 4 * 10**8)
        account = sessions.accounts.of(SMALL)
        assert (first.device_ns, account.device_ns, told) == (14 * 10**8, 14 * 10**8, [])
        account.check_time()
        sessions.accounts.add_device_time(first.id, 10**8)
        sessions.accounts.add_device_time(first.id, 10**8)
        assert told == ["small"], "once"
        for call in (account.check_time, lambda: sessions.open("c", "", Caller(SMALL))):
            with pytest.raises(Refusal) as error:
                call()
            assert error.value.reason == Reason.QUOTA_EXCEEDED and error.value.retry_after_s is None
            assert error.value.details["used"] == "1.600" and error.value.details["allowed"] == "1.5"
        sessions.accounts.add_device_time("0badc0de", 1)  # an unknown session is only logged

    run(scenario())


def test_number_of_remembered_accounts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_accounts, "REMEMBERED", 3)

    async def scenario() -> None:
        sessions = SessionTable(30, 10**6)
        kept, _ = sessions.open("kept", "")
        ended = []
        for _ in range(5):
            session, _ = sessions.open("a", "")
            await sessions.close(session, "test")
            ended.append(session)
        assert [sessions.accounts.session(each.id) for each in ended] == [None, None, *ended[2:]]
        assert sessions.accounts.session(kept.id) is kept
        assert len(list(sessions.accounts)) == 1

    run(scenario())


def test_used_up_time_ends_streams_and_refuses_work(tmp_path: Path) -> None:
    """New work is refused, in a stream and as single calls. Existing objects can be read and freed."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream, other = await f.attach(), None
            (session,) = f.daemon.sessions
            account = f.daemon.sessions.accounts.of(EVERYONE)
            account.tenant = Tenant("default", quotas=Quotas(gpu_seconds=1.0))
            await stream.write(device_pb2.ExecuteRequest(batch=c.Batch(seq=1)))
            assert (await stream.read()).ack.seq == 1
            for nanoseconds in (4 * 10**8, 7 * 10**8):
                f.device(0).send(Kind.METER, f'{{"{session.id}": {nanoseconds}}}'.encode())
            refusal = await ended(stream)
            assert refusal.reason == Reason.QUOTA_EXCEEDED
            assert refusal.details == {"quota": "gpu_seconds", "used": "1.100", "allowed": "1"}
            other = f.devices.Execute()
            await other.write(device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=f.token)))
            assert (await ended(other)).reason == Reason.QUOTA_EXCEEDED
            for rpc in ("Launch", "Allocate", "LoadModule", "Dispatch", "Fill"):
                request = getattr(device_pb2, f"{rpc}Request")(target=f.target())
                assert (await refused(getattr(f.devices, rpc)(request))).reason == Reason.QUOTA_EXCEEDED
            for rpc in ("Sync", "Free"):
                await getattr(f.devices, rpc)(getattr(device_pb2, f"{rpc}Request")(target=f.target()))
            assert (await refused(f.node.OpenSession(node_pb2.OpenSessionRequest()))).reason == Reason.QUOTA_EXCEEDED
            listed = (await f.node.ListSessions(node_pb2.ListSessionsRequest())).sessions
            assert [entry.device_ns for entry in listed] == [11 * 10**8]

    run(scenario())


def test_stream_that_waits_for_its_process_ends_if_the_time_is_used_up_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with front(tmp_path, launcher, devices=1) as f:
            await f.open()
            account = f.daemon.sessions.accounts.of(EVERYONE)
            account.tenant = Tenant("default", quotas=Quotas(gpu_seconds=1.0))
            launcher.ready = False
            request = node_pb2.OpenSessionRequest(isolation=node_pb2.ISOLATION_DEDICATED)
            token = (await f.node.OpenSession(request)).session_token
            stream = f.devices.Execute()
            await stream.write(device_pb2.ExecuteRequest(attach=device_pb2.Attach(session_token=token)))
            await until(lambda: len(launcher.started) == 2)
            f.daemon.sessions.accounts.add_device_time(f.session, 2 * 10**9)
            launcher.ready = True
            launcher.started[1].become_ready()
            assert (await stream.read()).WhichOneof("kind") == "attached"
            assert (await ended(stream)).reason == Reason.QUOTA_EXCEEDED

    run(scenario())


def test_accounts_listen_to_every_process(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, devices__max_restarts=3) as f:
            await f.open()
            (session,) = f.daemon.sessions
            meter(f, session.id)
            await until(lambda: session.device_ns == 5)
            f.device(0).die()
            await until(lambda: f.daemon.supervisor.find(0).generation == 2 and f.daemon.supervisor.find(0).running)
            meter(f, session.id)
            await until(lambda: session.device_ns == 10)

    def meter(f: Front, session: str) -> None:
        f.device(0).send(Kind.METER, f'{{"{session}": 5}}'.encode())

    run(scenario())


def test_an_account_is_made_once() -> None:
    accounts = TenantAccounts()
    assert accounts.of(SMALL) is accounts.of(SMALL) and accounts.of(SMALL).queue.full is False
    accounts.of(SMALL).queue.count(1, commands=3)
    assert accounts.of(SMALL).queue.full
