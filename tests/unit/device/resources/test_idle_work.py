"""Code is loaded and unloaded only while no kernel runs; all other work of a device continues meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.peers import PeerRig, PeerServer, collective, operation
from tests.support.device.rig import Rig, compiled
from tests.support.device.strict import Strict, launch, load, prepare, ready


@pytest.fixture
def rig() -> Iterator[Rig[Strict]]:
    made = Rig(DeviceSpec(0, "cpu", 0, cache_dir=compiled()), Strict)
    yield made
    made.server.gate.set()
    made.close()


def test_load_waits_for_the_kernel_and_delays_no_other_work(rig: Rig[Strict]) -> None:
    value = prepare(rig)
    rig.server.gate.clear()
    rig.batch(launch(1, 1))
    load(rig, 2, b"another")
    loaded = ready(rig, 2)
    assert rig.server.loaded == ["load"]
    for _ in range(50):  # copies, allocations and answers continue
        assert value(2) == 0
    rig.batch(launch(2, 2, stream=5))  # uses the module that is still to be loaded
    rig.server.gate.set()
    assert not rig.answer(loaded).HasField("error")
    assert [value(1), value(2)] == [1, 1]
    assert rig.server.loaded == ["load", "load"]


def test_load_runs_on_a_device_that_is_never_idle(rig: Rig[Strict]) -> None:
    """Launches arrive without end: they are held back until the running ones are done."""
    value = prepare(rig)
    sent = 0
    load(rig, 2, b"in between")
    loaded = ready(rig, 2)
    done: list[Any] = []
    while not done:
        rig.batch(*(launch(1, 1) for _ in range(200)))
        sent += 200
        assert value(2) == 0
        done = rig.came(Kind.RESULT, loaded)
        assert sent < 200_000
    assert not rig.answer(loaded).HasField("error")
    assert value(1) == sent


def test_waiting_unload_blocks_no_stream(rig: Rig[Strict]) -> None:
    value = prepare(rig)
    load(rig, 2, b"to go")
    assert not rig.answer(ready(rig, 2)).HasField("error")
    rig.server.gate.clear()
    rig.batch(launch(1, 1))
    rig.batch(c.Command(unload_module=c.UnloadModule(module=2)))
    rig.batch(launch(1, 2, stream=5))
    assert rig.server.loaded == ["load", "load"]
    rig.server.gate.set()
    assert [value(1), value(2)] == [1, 1]
    while len(rig.server.loaded) < 3:
        value(1)
    assert rig.server.loaded == ["load", "load", "unload"]


class Peers(PeerServer, Strict):
    """A server with communicators; no kernel may run while one is aborted."""


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def peers() -> Iterator[PeerRig]:
    made = PeerRig(server=Peers)
    yield made
    made.server.gate.set()  # type: ignore[attr-defined]
    made.close()


def test_unused_communicator_is_destroyed_on_an_idle_device(peers: PeerRig) -> None:
    server: Any = peers.server
    load(peers, 1)  # type: ignore[arg-type]
    assert not peers.answer(ready(peers, 1)).HasField("error")  # type: ignore[arg-type]
    idle, busy = peers.join("a-1"), peers.join("a-2")
    peers.batch(c.Command(create_stream=c.CreateStream(stream=5)), collective(1, operation(destination=2)))
    peers.go(peers.hear("present"), 1, "a-2")
    server.gate.clear()
    peers.batch(launch(1, 3, stream=5))
    sync = peers.sync()
    wait_for(lambda: server.running)  # because messages of the front may be handled before batches sent with them
    peers.abort(comm="a-1")
    peers.abort(comm="a-2")  # its running operation would not end without the abort
    assert peers.reason(sync) == Reason.COMMUNICATOR_FAILED
    assert busy.aborting.wait(10) and not idle.aborting.is_set()
    idle.abort_blocks.clear()
    server.gate.set()
    assert idle.aborting.wait(10)
    server.gate.clear()
    peers.batch(launch(1, 3, stream=5))
    peers.gauges()
    assert server.running == 0, "no kernel runs at the same time"
    idle.abort_blocks.set()
    wait_for(lambda: server.running)
    server.gate.set()
    assert peers.reason(peers.sync(5)) == ""


def busy_beside_a_kernel(peers: PeerRig, **facts: Any) -> tuple[Any, int]:
    """Starts an endless operation of a communicator and an endless kernel of another session. Returns the
    communicator, and the Sync after the operation."""
    load(peers, 1)  # type: ignore[arg-type]
    assert not peers.answer(ready(peers, 1)).HasField("error")  # type: ignore[arg-type]
    busy = peers.join("a-1")
    vars(busy).update(facts)
    peers.batch(c.Command(create_stream=c.CreateStream(stream=5)), collective(1, operation(destination=2)))
    peers.go(peers.hear("present"), 1, "a-1")
    peers.server.gate.clear()  # type: ignore[attr-defined]
    peers.batch(launch(1, 3, stream=5))
    return busy, peers.sync()


def test_running_communicator_is_stopped_immediately_and_freed_when_idle(peers: PeerRig) -> None:
    busy, sync = busy_beside_a_kernel(peers, can_stop=True)
    peers.abort(comm="a-1")
    assert peers.reason(sync) == Reason.COMMUNICATOR_FAILED
    assert busy.stopped.wait(10)
    peers.batch(launch(1, 3))  # other launches are executed meanwhile
    wait_for(lambda: peers.server.running == 2)  # type: ignore[attr-defined]
    assert not busy.aborting.is_set()
    peers.server.gate.set()  # type: ignore[attr-defined]
    assert busy.aborting.wait(10)
    assert peers.reason(peers.sync(5)) == ""


def test_communicator_that_cannot_be_stopped_is_aborted_during_other_work(peers: PeerRig) -> None:
    """NCCL may wait for all running work during the abort, so no new work may be added."""
    busy, sync = busy_beside_a_kernel(peers)
    busy.abort_blocks.clear()
    other = peers.join("a-2")
    peers.abort(comm="a-1")
    assert peers.reason(sync) == Reason.COMMUNICATOR_FAILED
    assert busy.aborting.wait(10)
    peers.batch(launch(1, 3), c.Command(create_stream=c.CreateStream(stream=6)))
    peers.batch(collective(2, operation(destination=2), stream=6))
    peers.go(peers.hear("present"), 1, "a-2")
    peers.gauges()
    assert peers.server.running == 1 and not other.given  # type: ignore[attr-defined]
    busy.abort_blocks.set()
    wait_for(lambda: peers.server.running == 2)  # type: ignore[attr-defined]
    peers.server.gate.set()  # type: ignore[attr-defined]
    wait_for(lambda: other.given)
    other.release()
    assert peers.reason(peers.sync(5)) == ""


def test_communicator_whose_stop_fails_is_aborted(peers: PeerRig, capfd: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        raise RuntimeError("this NCCL cannot")

    busy, sync = busy_beside_a_kernel(peers, can_stop=True, stop=stop)
    peers.abort(comm="a-1")
    assert peers.reason(sync) == Reason.COMMUNICATOR_FAILED
    assert busy.aborting.wait(10)
    peers.server.gate.set()  # type: ignore[attr-defined]
    assert peers.reason(peers.sync(5)) == ""
    assert "this NCCL cannot" in capfd.readouterr().err


def test_stop_waits_for_earlier_work(peers: PeerRig) -> None:
    peers.memberships.aborts.limit_s = 0.05
    gate = threading.Event()
    busy, _ = busy_beside_a_kernel(peers, can_stop=True, stop=lambda: gate.wait(30))
    peers.abort(comm="a-1")
    time.sleep(0.3)
    peers.gauges()
    assert not peers.heard("wedged")
    peers.server.gate.set()  # type: ignore[attr-defined]
    assert peers.hear("wedged")["comm"] == "a-1"
    gate.set()
    busy.release()
    assert busy.aborting.wait(10)


def test_launches_wait_a_bounded_time_for_a_destroyed_communicator(peers: PeerRig) -> None:
    peers.process.device.idle_work.max_hold_s = 0.1
    load(peers, 1)  # type: ignore[arg-type]
    assert not peers.answer(ready(peers, 1)).HasField("error")  # type: ignore[arg-type]
    idle = peers.join("a-1")
    idle.abort_blocks.clear()
    assert peers.reason(peers.sync()) == ""
    peers.abort(comm="a-1")
    assert idle.aborting.wait(10)
    peers.batch(launch(1, 3))
    assert peers.reason(peers.sync()) == ""
    idle.abort_blocks.set()
