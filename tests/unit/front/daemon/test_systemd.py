"""Notifications to the service manager, and the conditions under which none is sent."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.v1 import node_pb2
from hearthd.front.daemon.systemd import Notifier
from tests.support.front.fixture import front, run
from tests.support.notify_socket import NotifySocket


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NotifySocket]:
    heard = NotifySocket(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(heard.path))
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    yield heard
    heard.close()


def test_no_message_without_a_service_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = Notifier({})
    for word in (notifier.status, notifier.starting, notifier.ready, notifier.stopping, notifier.notify):
        word("x")
    notifier.reloading()
    asyncio.run(asyncio.wait_for(notifier.watchdog(lambda: True), 1))  # ends immediately


def test_notification_for_each_state(manager: NotifySocket) -> None:
    notifier = Notifier()
    notifier.reloading()
    notifier.reloaded()
    assert manager.listen(0) == [], "the daemon is not ready"
    notifier.starting("Starting")
    notifier.ready("Serving")
    notifier.status("Serving")  # unchanged, so it is not sent again
    notifier.status("Serving more")
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    notifier.reloaded()
    notifier.stopping("Stopping")
    notifier.reloading()  # reloads are not reported after the stop has begun
    notifier.reloaded()
    notifier.status("Serving")
    said = manager.listen(0)
    at = said[3].pop("MONOTONIC_USEC")
    assert before <= int(at) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert said == [
        {"STATUS": "Starting", "EXTEND_TIMEOUT_USEC": "15000000"},
        {"READY": "1", "STATUS": "Serving"},
        {"STATUS": "Serving more"},
        {"RELOADING": "1"},
        {"READY": "1"},
        {"STOPPING": "1", "STATUS": "Stopping", "EXTEND_TIMEOUT_USEC": "15000000"},
    ]


def beats(manager: NotifySocket) -> int:
    return sum("WATCHDOG" in message for message in manager.listen(0))


async def wait_beats(manager: NotifySocket, count: int) -> None:
    """Returns after `count` further notifications of the watchdog."""
    received = 0
    async with asyncio.timeout(20):
        while received < count:
            await asyncio.sleep(0.005)
            received += beats(manager)


def test_the_watchdog_is_fed_by_progress_alone(manager: NotifySocket) -> None:
    well = [True]

    async def scenario() -> None:
        feeding = asyncio.create_task(Notifier().watchdog(lambda: well[0]))
        await wait_beats(manager, 4)
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is stuck
        assert beats(manager) == 0
        await wait_beats(manager, 2)
        well[0] = False
        await asyncio.sleep(0.03)
        beats(manager)
        await asyncio.sleep(0.2)
        assert beats(manager) == 0
        feeding.cancel()

    run(scenario())


def test_another_process_s_watchdog_is_left_alone(manager: NotifySocket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_PID", "1")
    asyncio.run(asyncio.wait_for(Notifier().watchdog(lambda: True), 1))
    assert manager.listen(0) == []


def test_watchdog_is_not_fed_while_a_device_is_silent(manager: NotifySocket, tmp_path: Path) -> None:
    """The supervisor replaces the device process long before. If even that does not happen, systemd must restart the
    daemon."""

    async def scenario() -> None:
        async with front(tmp_path, devices__ping_timeout="300ms") as served:
            await wait_beats(manager, 2)
            assert served.daemon.healthy()
            device = served.daemon.supervisor.devices[1]
            process = device.workers.running[0].process
            assert process is not None
            process.last_pong -= 10  # until the next pong, which the event loop would receive
            assert not served.daemon.healthy()
            process.last_pong += 10
            assert served.daemon.healthy()

    run(scenario())


def test_status_line_counts_devices_and_sessions(manager: NotifySocket, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as served:
            said = manager.listen(0)
            assert said[0]["STATUS"] == "Starting" and "EXTEND_TIMEOUT_USEC" in said[0]
            daemon = served.daemon
            assert daemon.status_line() == "Serving 2 devices, 0 sessions"
            await served.node.OpenSession(node_pb2.OpenSessionRequest())
            daemon.supervisor.devices[1].fenced = "too hot"
            for worker in daemon.supervisor.devices[1].workers:
                worker.fence("too hot")
            assert daemon.status_line() == "Serving 2 devices (device 1 fenced: too hot), 1 session"
            daemon.reloader.refusal = "no TOML"
            assert daemon.status_line().endswith("1 session. The last reload was refused: no TOML")

    run(scenario())
