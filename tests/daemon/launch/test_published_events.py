"""Published events: streams of one session wait for events of another session of the same tenant."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import common, gated
from tests.support.daemon.raw import Raw
from tests.support.daemon.tenants import tenant, tenants


@pytest.fixture
def other(daemon: DaemonProcess) -> Iterator[hearth.Device]:
    """The same device in another session."""
    with daemon.connect() as node:
        yield node.device(0)


def reason_of(call: Callable[..., Any], *args: Any, **keywords: Any) -> str:
    with pytest.raises(hearth.HearthError) as caught:
        call(*args, **keywords)
    return str(caught.value.reason)


def test_stream_waits_for_the_event_of_another_session(gpu: hearth.Device, other: hearth.Device) -> None:
    producer, consumer = gpu.stream(), other.stream()
    with gated(gpu) as gate:
        gate.hold(stream=producer)
        event = producer.record()
        event.publish("ready")
        seen = other.attach_event("ready")
        consumer.wait_event(seen)
        after = consumer.record()
        assert not seen.done and not after.done
        beside = other.stream()
        x = other.zeros(8, np.int32, beside)
        x.fill(3, beside)
        beside.synchronize(timeout=30)  # other work of the waiting session continues
        with pytest.raises(hearth.TimeoutError):
            seen.synchronize(timeout=0.05)
        gate.open()
        after.synchronize(timeout=30)
        assert seen.done and event.done
        assert hearth.get_elapsed_time(seen, after) >= 0


def test_record_of_a_published_event_is_seen_by_a_session_that_waits_afterwards(
    gpu: hearth.Device, other: hearth.Device
) -> None:
    producer, consumer = gpu.stream(), other.stream()
    event = producer.record()
    event.publish("step")
    seen = other.attach_event("step")
    seen.synchronize(timeout=30)
    for _ in range(20):
        with gated(gpu) as gate:
            gate.hold(stream=producer)
            producer.record(event)
            consumer.wait_event(seen)
            after = consumer.record()
            assert not after.done, "the wait covers only the earlier record"
            gate.open()
            after.synchronize(timeout=30)


def test_many_threads_hand_work_on(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """Sessions wait for each other in a ring; each adds one after the event of the previous one."""
    turns, ranks = 10, 3
    order: list[int] = []
    ready = [[threading.Event() for _ in range(ranks)] for _ in range(turns)]
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            with daemon.connect() as node:
                device = node.device(0)
                spin, stream, event = common(device, "spin"), device.stream(), device.event()
                for turn in range(turns):
                    before = (turn, rank - 1) if rank else (turn - 1, ranks - 1)
                    if before[0] >= 0:
                        assert ready[before[0]][before[1]].wait(30)
                        stream.wait_event(device.attach_event(f"rank {before[1]}"))
                    spin((1,), (1,), (np.int64(2_000_000),), stream=stream)
                    stream.launch_host_func(order.append, turn * ranks + rank)
                    stream.record(event)
                    event.publish(f"rank {rank}")
                    ready[turn][rank].set()
                assert ready[-1][-1].wait(60)
                node.synchronize()
                wait_until(lambda: len(order) == turns * ranks, "the calls of all ranks")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
    assert sorted(order) == list(range(turns * ranks))


def test_event_outlives_the_session_that_published_it(daemon: DaemonProcess, other: hearth.Device) -> None:
    with daemon.connect() as node:
        owner = node.device(0)
        spin, stream = common(owner, "spin"), owner.stream()
        spin((1,), (1,), (np.int64(300_000_000),), stream=stream)
        event = stream.record()
        event.publish("last")
        seen = other.attach_event("last")
    assert reason_of(other.attach_event, "last") == "NOT_PUBLISHED"
    consumer = other.stream()
    consumer.wait_event(seen)
    consumer.synchronize(timeout=30)
    assert seen.done
    x = other.zeros(4, np.float32, consumer)
    assert (x.get(stream=consumer) == 0).all()


def test_names(gpu: hearth.Device, other: hearth.Device) -> None:
    first, second = gpu.default_stream.record(), other.default_stream.record()
    first.publish("name")
    first.publish("name")
    assert reason_of(second.publish, "name") == "NAME_IN_USE"
    second.publish("name", replace=True)
    attached = gpu.attach_event("name")
    assert reason_of(attached.publish, "another") == "READ_ONLY"
    assert reason_of(gpu.default_stream.record, attached) == "READ_ONLY"
    assert reason_of(first.publish, "") == reason_of(first.publish, "a\nb") == "INVALID_ARGUMENT"
    assert reason_of(gpu.event().publish, "new") == "INVALID_ARGUMENT", "it was never recorded"
    second.publish("moved")
    assert reason_of(gpu.attach_event, "name") == "NOT_PUBLISHED", "an event has one name"
    began = time.monotonic()
    assert reason_of(gpu.attach_event, "nothing", wait=0.2) == "NOT_PUBLISHED"
    assert time.monotonic() - began >= 0.15
    assert reason_of(gpu.attach_event, "nothing", wait=-1) == "INVALID_ARGUMENT"
    del second
    other.zeros(1)  # sends the destruction of the event
    other.synchronize()
    gpu.synchronize()


def test_attach_waits_for_the_name(gpu: hearth.Device, other: hearth.Device) -> None:
    event = gpu.default_stream.record()
    publishing = threading.Timer(0.2, event.publish, ("soon",))
    publishing.start()
    other.attach_event("soon", wait=30).synchronize(timeout=30)
    publishing.join()


def test_a_published_event_is_recorded_in_no_capture(gpu: hearth.Device, other: hearth.Device) -> None:
    stream = gpu.stream()
    event = stream.record()
    event.publish("captured")
    stream.begin_capture()
    assert reason_of(stream.record, event) == "CAPTURE_INVALID"
    assert reason_of(stream.end_capture) == "CAPTURE_INVALID"
    other.attach_event("captured").synchronize(timeout=30)


@pytest.mark.parametrize("isolation", ["tenant", "shared"])
def test_other_tenants_see_no_events(start_daemon: StartDaemon, isolation: str) -> None:
    config, tokens = tenants("alice", "bob", tenant("guest", rights=["allocate"]), devices={"isolation": isolation})
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["alice"]) as alice, daemon.connect(token=tokens["bob"]) as bob:
        event = alice.device(0).default_stream.record()
        event.publish("mine")
        assert reason_of(bob.device(0).attach_event, "mine") == "NOT_PUBLISHED"
        bobs = bob.device(0).default_stream.record()
        bobs.publish("mine")  # names belong to a tenant
        with daemon.connect(token=tokens["alice"]) as again:
            again.device(0).attach_event("mine").synchronize(timeout=30)
        with daemon.connect(token=tokens["guest"]) as guest:
            assert reason_of(guest.device(0).default_stream.record().publish, "mine") == "PERMISSION_DENIED"
            assert reason_of(guest.device(0).attach_event, "mine") == "PERMISSION_DENIED"


def test_dedicated_sessions_share_no_events(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    event = gpu.default_stream.record()
    event.publish("here")
    with daemon.connect(isolation="dedicated") as node:
        assert reason_of(node.device(0).attach_event, "here") == "NOT_PUBLISHED"


def test_raw_clients_cannot_record_attached_events(raw: Raw) -> None:
    with raw.execute() as stream:
        stream.batch(c.Command(record_event=c.RecordEvent(event=1)))
        assert not stream.ask(c.Command(publish_event=c.PublishEvent(event=1, name="raw"))).HasField("error")
        assert not stream.ask(c.Command(attach_event=c.AttachEvent(event=2, name="raw"))).HasField("error")
        for command in (
            c.Command(record_event=c.RecordEvent(event=2)),
            c.Command(publish_event=c.PublishEvent(event=2, name="x")),
        ):
            assert "READ_ONLY" in str(stream.ask(command).error)
        assert "INVALID_ARGUMENT" in str(stream.ask(c.Command(publish_event=c.PublishEvent(event=1))).error)
        assert "HANDLE_IN_USE" in str(stream.ask(c.Command(attach_event=c.AttachEvent(event=2, name="raw"))).error)
        stream.batch(c.Command(destroy_event=c.DestroyEvent(event=1)))
        assert "NOT_PUBLISHED" in str(stream.ask(c.Command(attach_event=c.AttachEvent(event=3, name="raw"))).error)
        assert stream.ask(c.Command(query_event=c.QueryEvent(event=2, wait=True))).event.done


def test_events_with_asyncio(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    async def main() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            device = node.device(0)
            event = device.default_stream.record()
            await event.publish("from asyncio")
            seen = gpu.attach_event("from asyncio")
            await asyncio.to_thread(seen.synchronize, 30)
            with pytest.raises(hearth.LaunchError, match="recorded again"):
                device.default_stream.record(event)
            newer = device.default_stream.record()
            await newer.publish("from asyncio", replace=True)
            mine = gpu.default_stream.record()
            mine.publish("to asyncio")
            attached = await device.attach_event("to asyncio", wait=5)
            device.default_stream.wait_event(attached)
            await device.default_stream.synchronize(30)
            assert await attached.done()
            with pytest.raises(hearth.InvalidHandleError):
                await device.attach_event("nothing", wait=0.05)

    asyncio.run(main())
