"""Effect of a lost device process on pending and later calls."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2, device_pb2, node_pb2
from hearthd.front.supervisor.process import done_within
from tests.support.front.fake_device import FakeLauncher
from tests.support.front.fixture import ended, front, refused, run, until
from tests.support.timing import LATE


def sync(f: object, device: int = 0) -> device_pb2.SyncRequest:
    return device_pb2.SyncRequest(target=f.target(device), command=commands_pb2.Sync())  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["signal", "exit", "fault", "garbage", "end of file"])
def test_lost_device_fails_waiting_calls_and_is_restarted(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with front(tmp_path, launcher) as f:
            await f.open()
            stream = await f.attach()
            neighbour = await f.attach(device=1)
            launcher.unanswered = {"sync"}
            call = f.devices.Sync(sync(f))
            await until(lambda: f.device().commands)
            first = f.device()
            if how == "fault":
                fault = Refusal(Reason.DEVICE_LOST, "kernel boom wrote to 0x8.", details={"in_flight": "boom, later"})
                first.fault(fault)
            elif how == "garbage":
                first.send(0xFFFF)  # an unknown kind is ignored
                first.link.sendall(b"\xff" * 100)
            else:
                first.die({"signal": -11, "exit": 3}.get(how))
            event = (await stream.read()).event.device_lost
            assert (event.device, event.generation) == (0, 1)
            refusals = [await refused(call), await ended(stream), from_status(event.status)]
            for refusal in refusals:
                assert refusal.reason == Reason.DEVICE_LOST
                assert refusal.retry_after_s == 0.5
                assert refusal.details["generation"] == "1"
            text = {
                "signal": "killed by SIGSEGV",
                "exit": "exit code 3",
                "fault": "kernel boom wrote to 0x8",
                "garbage": "not valid frames",
                "end of file": "vanished",
            }[how]
            assert text in refusals[0].message
            assert list(event.in_flight) == (["boom", "later"] if how == "fault" else [])
            launcher.unanswered = set()
            await f.devices.Sync(sync(f))
            again = await f.attach()
            describe = await f.node.Describe(node_pb2.DescribeRequest())
            assert [(d.generation, d.state) for d in describe.devices] == [(2, 2), (1, 2)]
            await neighbour.write(device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=1)))
            assert (await neighbour.read()).ack.seq == 1
            await again.write(device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=1)))
            assert (await again.read()).ack.seq == 1
            assert f.daemon.supervisor.find(0).restarts == {
                {"signal": "signal", "exit": "exit", "fault": "fault", "garbage": "link", "end of file": "unknown"}[
                    how
                ]: 1
            }

    run(scenario())


def test_first_single_call_after_a_loss_reports_it(tmp_path: Path) -> None:
    """A launch that ends the device process must not be followed by a Sync that succeeds on the next process."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await f.devices.Sync(sync(f))
            f.device().die()
            await until(lambda: f.device().spec.generation == 2)
            assert (await refused(f.devices.Sync(sync(f)))).reason == Reason.DEVICE_LOST
            await f.devices.Sync(sync(f))

    run(scenario())


def test_a_process_that_answers_no_ping_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        async with front(tmp_path, launcher, devices__ping_timeout="100ms") as f:
            await f.open()
            stream = await f.attach()
            launcher.mute = True
            event = (await stream.read()).event.device_lost
            assert "ping" in from_status(event.status).message
            assert launcher.started[0].exit_code == -9
            launcher.mute = False

    run(scenario())


def test_time_in_which_the_front_did_not_run_is_not_held_against_a_process() -> None:
    """After a suspension of the machine, timers expire while answers are still unread."""

    async def scenario() -> None:
        came = asyncio.Event()

        async def answer() -> None:
            await came.wait()
            for _ in range(3):  # the answer is found, read and passed on, one event loop iteration each
                await asyncio.sleep(0)

        def suspended() -> None:
            time.sleep(0.5)
            came.set()

        asyncio.get_running_loop().call_soon(suspended)
        assert await done_within(0.2, answer())
        began = time.monotonic()
        assert not await done_within(0.2, asyncio.Event().wait())
        assert 0.2 <= time.monotonic() - began < LATE
        with pytest.raises(Refusal):
            await done_within(5, _refusing())

    asyncio.run(scenario())


async def _refusing() -> None:
    raise Refusal(Reason.DEVICE_LOST, "it is gone")


def test_a_process_that_is_never_ready_is_killed_and_the_device_fenced(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        launcher.ready = False
        flags = {"devices__start_timeout": "50ms", "devices__max_restarts": 1}
        async with front(tmp_path, launcher, devices=1, **flags) as f:
            await f.open()
            refusal = await refused(f.devices.Sync(sync(f)))
            assert refusal.reason == Reason.DEVICE_UNAVAILABLE
            await until(lambda: f.daemon.supervisor.find(0).state == node_pb2.DEVICE_STATE_FENCED)
            refusal = await refused(f.devices.Sync(sync(f)))
            assert "fenced" in refusal.message
            assert refusal.retry_after_s is None
            assert len(launcher.started) == 2

    run(scenario())


def test_too_many_losses_fence_the_device_and_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, devices__max_restarts=2) as f:
            await f.open()
            device = f.daemon.supervisor.find(0)
            for generation in (1, 2, 3):
                serving = (node_pb2.DEVICE_STATE_SERVING, generation)
                await until(lambda serving=serving: (device.state, device.generation) == serving)
                f.device().die()
            await until(lambda: device.state == node_pb2.DEVICE_STATE_FENCED)
            assert f.daemon.supervisor.find(1).state == node_pb2.DEVICE_STATE_SERVING
            await f.devices.Sync(sync(f, device=1))

    run(scenario())


def test_a_launch_that_fails_counts_as_a_loss(tmp_path: Path) -> None:
    class Broken(FakeLauncher):
        failures = 1

        async def launch(self, spec: object) -> object:  # type: ignore[override]
            if self.failures:
                self.failures -= 1
                raise OSError("no more processes")
            return await super().launch(spec)  # type: ignore[arg-type]

    async def scenario() -> None:
        async with front(tmp_path, Broken(), devices=1) as f:
            await f.open()
            await f.devices.Sync(sync(f))
            assert f.daemon.supervisor.find(0).restarts == {"launch": 1}

    run(scenario())


def test_stop_while_a_process_starts(tmp_path: Path) -> None:
    async def scenario() -> None:
        launcher = FakeLauncher()
        launcher.ready = False
        entered = front(tmp_path, launcher, devices=1, devices__start_timeout="60s")
        starting = asyncio.create_task(entered.__aenter__())
        await until(lambda: launcher.started)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)

    run(scenario())
