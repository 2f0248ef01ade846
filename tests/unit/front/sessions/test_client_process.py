from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hearthd.front.connections import peers
from hearthd.front.sessions.client_process import ClientProcess, calling_process
from hearthd.front.sessions.session import SessionEnd
from hearthd.front.sessions.session_table import SessionTable
from tests.support.front.fixture import run


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])


def descriptors() -> int:
    """Returns the number of open descriptors of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_session_expires_with_its_process_and_its_last_connection() -> None:
    async def scenario() -> None:
        child, sessions = sleeper(), SessionTable(30.0)
        watched = ClientProcess(child.pid, os.pidfd_open(child.pid))
        probe = os.pidfd_open(child.pid)
        session, token = sessions.open("me", "1", watch=lambda: watched)
        calling_process.set(child.pid)
        assert sessions.find(token) is session and session.process is watched
        with sessions.keep_alive(session):
            child.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.1)
            assert not watched.ended
            child.kill()
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(probe, ended.set)
            await asyncio.wait_for(ended.wait(), 60)
            asyncio.get_running_loop().remove_reader(probe)
            await asyncio.sleep(0.1)
            assert watched.ended and sessions.expired() == []
        assert sessions.expired() == [session] and sessions.lease_left(session) == 0
        await asyncio.wait_for(sessions.emptied.wait(), 60)
        assert session.closing and session.ended_by is SessionEnd.LEASE
        child.wait()
        os.close(probe)

    run(scenario())


def test_a_session_that_another_process_uses_is_not_watched() -> None:
    async def scenario() -> None:
        child, sessions = sleeper(), SessionTable(30.0)
        session, token = sessions.open("me", "1", watch=lambda: ClientProcess(child.pid, os.pidfd_open(child.pid)))
        assert sessions.find(token) is session  # calling_process is 0: the call arrived over gRPC
        assert session.process is None
        child.kill()
        child.wait()
        await asyncio.sleep(0.1)
        assert sessions.expired() == []
        await sessions.close(session, "test")

    run(scenario())


def test_closed_sessions_and_watches_close_their_descriptors() -> None:
    async def scenario() -> None:
        sessions, before = SessionTable(30.0), descriptors()
        session, _ = sessions.open("me", "1", watch=lambda: ClientProcess(os.getpid(), os.pidfd_open(os.getpid())))
        assert descriptors() == before + 1
        await sessions.close(session, "test")
        assert descriptors() == before

    run(scenario())


@pytest.mark.parametrize("option", [77, 1 << 20])
def test_the_process_of_a_peer(monkeypatch: pytest.MonkeyPatch, option: int) -> None:
    monkeypatch.setattr(peers, "_SO_PEERPIDFD", option)  # the second is unknown, as 77 is to Linux before 6.5
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = peers.process_of(ours)
        assert found is not None and found[0] == os.getpid()
        os.close(found[1])
        monkeypatch.setattr(resource, "getrlimit", lambda _: (found[1], found[1]))
        assert peers.process_of(ours) is None  # descriptors are scarce
    with socket.socket() as tcp:
        assert peers.process_of(tcp) is None


def test_the_pids_of_a_process() -> None:
    assert peers.pids_of(os.getpid())[0] == os.getpid()
    assert peers.pids_of(1 << 30) == (1 << 30,)
