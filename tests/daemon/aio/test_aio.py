"""The asyncio client: calls that wait are coroutines, and none blocks the event loop."""

from __future__ import annotations

import asyncio
import gc
import io
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hearth
from hearth import aio
from hearth.aio.connection import LoopConnection
from hearth.errors import HearthError
from tests.support.client.internals import connection_of
from tests.support.daemon.aio_ways import LARGE, WAYS, connect
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.loops import LOOPS, Gate, run, threads


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
def test_kernels_and_copies_give_right_results(daemon: DaemonProcess, way: str, loop: str) -> None:
    async def main() -> None:
        async with connect(daemon, way) as node:
            gpu = node.device(0)
            add_one = gpu.RawModule(code=COMMON).get_function("add_one")
            x = gpu.asarray(np.arange(1000, dtype=np.int32))
            big = np.arange(LARGE, dtype=np.float64)
            y = gpu.asarray(big)
            big[:] = -1  # the array's contents have been copied
            add_one((4,), (256,), (x, np.int32(1000)))
            got, large = await asyncio.gather(x.get(), y.get())
            assert (got == np.arange(1, 1001)).all()
            assert (large == np.arange(LARGE)).all()
            assert type(x[2:5]) is type(x.copy()) is type(gpu.zeros(3)) is aio.DeviceArray
            assert await x[7].item() == 8
            out = np.zeros(1000, np.int32)
            assert await x.get(out) is out and out[999] == 1000
            await gpu.synchronize()
            await gpu.flush()
            await node.synchronize()

    run(main, loop)


def test_modules_and_streams(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            module = gpu.RawModule(code=COMMON)
            await module.compile(io.StringIO())
            assert "add_one" in await module.functions() and await module.globals() == []
            kernel = module.get_function("add_one")
            assert isinstance(kernel, aio.Function)
            assert (await kernel.attributes())["max_threads_per_block"] == await kernel.max_threads_per_block() > 0
            assert len(await kernel.parameters()) == 2 and (await kernel.occupancy(256)).blocks_per_multiprocessor > 0
            x = gpu.zeros(256, np.int32)
            never_recorded = gpu.event()  # done
            await never_recorded.synchronize()
            assert await never_recorded.done()
            with gpu.stream() as stream:
                assert gpu.current_stream is stream
                stream.wait_event(never_recorded)
                start = stream.record()
                kernel((1,), (256,), (x, np.int32(256)))
                await asyncio.sleep(0)
                assert gpu.current_stream is stream
                end = stream.record(gpu.event())
                await end.synchronize()
                assert await end.done() and await stream.done()
                assert await end.elapsed(start) == await aio.get_elapsed_time(start, end) >= 0
                await stream.synchronize()
            assert (await x.get() == 1).all()

    run(main)


def test_graphs_and_profiles(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            kernel = gpu.RawModule(code=COMMON).get_function("add_one")
            x = gpu.zeros(256, np.int32)
            args = (x, np.int32(256))
            async with gpu.profile() as p:
                kernel((1,), (256,), args)
            assert p.wall_ns > 0
            async with gpu.trace() as t:
                kernel((1,), (256,), args)
            assert [event.kernel for event in t.events if event.name == "launch"] == ["add_one"]
            async with gpu.graph() as g:
                kernel((1,), (256,), args)
            g.launch(10)
            async with gpu.prepared() as prepared:
                kernel((1,), (256,), args)
            prepared.launch(5)
            (await gpu.prepare([(kernel, 1, 256, args)])).launch()
            assert ((await x.get()) == 1 + 1 + 10 + 5 + 1).all()
            with pytest.raises(hearth.LaunchError):
                async with gpu.graph() as g:
                    x.set(np.zeros(256, np.int32))  # a write cannot be captured
            with pytest.raises(hearth.InvalidHandleError):
                g.launch()

    run(main)


def test_captures_of_streams(daemon: DaemonProcess) -> None:
    """A task captures its streams; another task's work runs meanwhile."""

    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            kernel = gpu.RawModule(code=COMMON).get_function("add_one")
            x, y = gpu.zeros(256, np.int32), gpu.zeros(256, np.int32)
            stream, side = gpu.stream(), gpu.stream()
            kernel((1,), (256,), (x, np.int32(256)), stream=stream)
            await stream.synchronize()
            stream.begin_capture()
            assert stream.is_capturing()
            await stream.done()  # answered, without effect on the capture
            kernel((1,), (256,), (x, np.int32(256)), stream=stream)
            fork = stream.record()
            side.wait_event(fork)
            with side:
                kernel((1,), (256,), (y, np.int32(256)))
            stream.wait_event(side.record())
            with pytest.raises(hearth.LaunchError, match="is not in the capture"):
                x.fill(3)
            with pytest.raises(hearth.LaunchError, match="recorded in the capture"):
                await fork.done()
            g = await stream.end_capture()
            assert type(g) is aio.Graph and [node.after for node in g.nodes] == [(), (0,)]
            assert (await x.get() == 1).all() and not (await y.get()).any()
            g.launch(2)
            assert (await x.get() == 3).all() and (await y.get() == 2).all()
            with pytest.raises(hearth.LaunchError, match="is not being captured"):
                await stream.end_capture()
            async with gpu.graph(mode="relaxed") as outer:
                g.launch()
                kernel((1,), (256,), (y, np.int32(256)), stream=side)
            assert len(outer) == 2 and (await y.get() == 3).all()

            async def captures() -> aio.Graph:
                own = gpu.stream()
                own.begin_capture()
                begun.set()
                await ended.wait()
                return await own.end_capture()

            begun, ended = asyncio.Event(), asyncio.Event()
            task = asyncio.create_task(captures())
            await begun.wait()
            kernel((1,), (256,), (x, np.int32(256)))
            ended.set()
            assert len(await task) == 0 and (await x.get() == 4).all()

    run(main)


def test_queries_of_node(daemon: DaemonProcess) -> None:
    async def main() -> None:
        node = await connect(daemon)
        gpu = node.device(0)
        x = gpu.full(256, 19, np.int32)
        assert (await gpu.memory_usage()).allocations == 1
        await gpu.memory_cleanup()
        assert await gpu.state() == "serving" and await gpu.generation() == 1
        assert (await node.describe()).devices[0].ordinal == 0
        assert node.session_id in [session.session_id for session in await node.sessions()]
        assert (await node.status())["devices"]
        await x.publish("aio")
        assert "aio" in [each.name for each in await gpu.published()]
        async with connect(daemon) as other:
            seen = await other.device(0).attach("aio")
            assert type(seen) is aio.DeviceArray and (await seen.get() == 19).all()
            await gpu.unpublish("aio")
            with pytest.raises(hearth.InvalidHandleError):
                await other.device(0).attach("aio")
        await node.close()
        assert node.closed

    run(main)


@pytest.mark.parametrize("size", [1000, LARGE])
def test_dispatch(daemon: DaemonProcess, size: int) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            add_one = gpu.RawModule(code=COMMON).get_function("add_one")
            host = np.arange(2 * size, dtype=np.int32)
            args = [hearth.InOut(host), np.int32(2 * size)]
            geometry = (2 * size // 256 + 1, 256)
            (out,) = await gpu.dispatch(add_one, *geometry, args=args)
            assert (out == host + 1).all()
            pending = gpu.dispatch_async(add_one, *geometry, args=args, iterations=3)
            first, second = await asyncio.gather(pending.result(), pending.result(timeout=30))
            assert first[0] is second[0] and (first[0] == host + 3).all()
            assert pending.state == "done" and pending.timing.wall_ns > 0
            with pytest.raises(hearth.ArgumentError, match="must be a number of seconds"):
                await pending.result(timeout="x")  # type: ignore[arg-type]

    run(main)


def test_hundreds_of_tasks_wait_without_a_thread_each(daemon: DaemonProcess) -> None:
    async def main() -> None:
        before = threads()
        async with connect(daemon) as node:
            gpu = node.device(0)
            gate = await Gate(gpu).made()
            arrays = [gpu.full(10, number, np.int32) for number in range(500)]
            for number, got in enumerate(await asyncio.gather(*(array.get() for array in arrays))):
                assert (got == number).all()
            gate.hold()
            held = [asyncio.ensure_future(array.get()) for array in arrays[:100]]
            held += [asyncio.ensure_future(gpu.synchronize()) for _ in range(50)]  # type: ignore[arg-type]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in held)
            assert len(threads() - before) <= 8
            await gate.open()
            await asyncio.gather(*held)

    run(main)


def test_many_large_arrays_share_few_threads(daemon: DaemonProcess) -> None:
    async def main() -> None:
        before = threads()
        async with connect(daemon, "grpc") as node:
            gpu = node.device(0)
            arrays = [gpu.asarray(np.full(LARGE, number)) for number in range(20)]
            most = 0
            gets = asyncio.gather(*(array.get() for array in arrays))
            while not gets.done():
                most = max(most, sum(t.name.startswith("hearth-aio") for t in threads() - before))
                await asyncio.sleep(0.001)
            for number, got in enumerate(await gets):
                assert (got == number).all()
            assert most <= 18

    run(main)


def test_full_queue_blocks_no_other_task(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            module = gpu.RawModule(code=COMMON)
            add_one, spin = module.get_function("add_one"), module.get_function("spin")
            x = gpu.zeros(1, np.int32)
            await gpu.synchronize()
            connection_of(gpu).attachment().queue.max_commands = 500
            spin((1,), (1,), (np.int64(300_000_000),))
            launched = 0  # launches do not wait for room: otherwise none would be refused
            with pytest.raises(hearth.QuotaExceededError, match="ready") as caught:
                while launched < 200_000:
                    add_one((1,), (1,), (x, np.int32(1)))
                    launched += 1
            assert caught.value.reason == "QUEUE_FULL"
            waiting = asyncio.ensure_future(gpu.ready())
            await asyncio.sleep(0)
            assert not waiting.done()
            await waiting
            add_one((1,), (1,), (x, np.int32(1)))
            assert await x[0].item() == launched + 1
            for _ in range(5000):  # with the intended use: each launch is awaited
                add_one((1,), (1,), (x, np.int32(1)))
                await gpu.ready()
            assert await x[0].item() == launched + 5001

    run(main)


def test_number_of_pending_uploads_is_bounded(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon, "grpc") as node:
            gpu = node.device(0)
            connection = connection_of(gpu)
            assert isinstance(connection, LoopConnection)
            connection.uploads_soft, connection.uploads_hard = 8 * LARGE, 24 * LARGE
            arrays = []
            with pytest.raises(hearth.QuotaExceededError, match="being uploaded"):
                for number in range(10):
                    arrays.append(gpu.asarray(np.full(LARGE, number)))
            assert len(arrays) >= 3
            await gpu.ready()
            arrays.append(gpu.asarray(np.full(LARGE, len(arrays))))
            for number, array in enumerate(arrays):
                assert ((await array.get()) == number).all()

    run(main)


def test_errors_are_raised_where_the_synchronous_client_raises_them(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            missing = gpu.RawModule(code=COMMON).get_function("missing")
            x = gpu.zeros(4, np.int32)
            missing((1,), (1,), (x,))
            with pytest.raises(HearthError, match="missing"):
                await gpu.synchronize()
            await gpu.synchronize()
            with pytest.raises(hearth.CompileError) as caught:
                await gpu.RawModule(code="no code").compile()
            assert caught.value.log
            with pytest.raises(hearth.LaunchError):
                missing((0,), (1,), (x,))
            with pytest.raises(TypeError, match="await"):
                np.asarray(x)
            with pytest.raises(TypeError, match="await"):
                float(x[0])
            with pytest.raises(hearth.ArgumentError, match="await"):
                x.set(np.zeros(4, np.int32), blocking=True)
            for entered in (node, gpu.graph(), gpu.prepared(), gpu.profile(), gpu.trace()):
                with pytest.raises(TypeError, match="async with"), entered:
                    pass
            x.free()
            with pytest.raises(hearth.InvalidHandleError):
                await x.get()

    run(main)


def test_timeouts_are_raised_and_leave_the_session_usable(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu = node.device(0)
            gate = await Gate(gpu).made()
            x, y = gpu.zeros(10, np.int32), gpu.zeros(LARGE)
            gate.hold()
            for wait in (x.get, y.get, gpu.synchronize, node.synchronize, gpu.default_stream.synchronize):
                with pytest.raises(hearth.TimeoutError):
                    await wait(timeout=0.02)  # type: ignore[operator]
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await wait()  # type: ignore[operator]
                for invalid in ("x", math.nan):
                    with pytest.raises(hearth.ArgumentError, match="must be a number of seconds"):
                        await wait(timeout=invalid)  # type: ignore[operator]
            await gate.open()
            assert (await x.get() == 0).all() and (await y.get(timeout=np.float32(60)) == 0).all()

    run(main)


def test_use_from_other_event_loop_is_refused(daemon: DaemonProcess) -> None:
    async def stray(node: aio.Node, x: aio.DeviceArray) -> None:
        for use in (x.get, node.describe, node.close):
            with pytest.raises(hearth.UnsupportedError, match="another event loop"):
                await use()
        with pytest.raises(hearth.UnsupportedError, match="another event loop"):
            node.device(0)

    async def main() -> None:
        async with connect(daemon) as node:
            x = node.device(0).ones(3)
            await asyncio.to_thread(asyncio.run, stray(node, x))
            y = await asyncio.to_thread(lambda: node.device(0).full(LARGE, 7.0))  # a plain call, from a thread
            assert (await x.get() == 1).all() and (await y.get() == 7).all()

    for _ in range(2):  # two event loops, one after the other
        run(main)
    outcomes: list[object] = []

    def in_thread() -> None:
        try:
            outcomes.append(asyncio.run(main()))
        except BaseException as error:
            outcomes.append(error)

    both = [threading.Thread(target=in_thread) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert outcomes == [None, None]


def test_asyncio_and_synchronous_clients_in_one_process(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    gpu.synchronize()  # starts the client's threads

    async def main() -> None:
        async with connect(daemon) as node:
            mine, theirs = node.device(0).zeros(4, np.int32), gpu.ones(4, np.int32)
            for _ in range(20):
                assert (theirs.get() == 1).all() and (await mine.get() == 0).all()
            with pytest.raises(hearth.LaunchError):
                gpu.RawModule(code=COMMON).get_function("add_one")((1,), (1,), (mine, np.int32(1)))

    run(main)


def test_session_of_an_unclosed_node_is_closed(daemon: DaemonProcess) -> None:
    async def main() -> str:
        node = await connect(daemon)
        gpu = node.device(0)
        gpu.zeros(10)
        await gpu.synchronize()
        return node.session_id

    session = run(main)  # which waits until its threads have ended
    gc.collect()
    wait_until(lambda: session not in [each["id"] for each in daemon.status()["sessions"]], "the session's end")


def test_waits_that_the_end_of_the_loop_cancels(daemon: DaemonProcess) -> None:
    async def main() -> None:
        node = await connect(daemon)
        gpu = node.device(0)
        gate = await Gate(gpu).made()
        gate.hold()
        waits = [asyncio.ensure_future(gpu.synchronize()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waits)
        keep.append(gate)

    keep: list[Any] = []
    asyncio.run(main())
    node = connection_of(keep[0].side)  # the event loop has ended: late answers find no waiter and cause no error
    keep[0].gate.set(np.ones(1, np.int32), stream=keep[0].side)
    assert node.attachment().alive
    keep.clear()


@pytest.mark.parametrize("operation", ["all_reduce", "batch"])
def test_a_group(daemon: DaemonProcess, operation: str) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            if len(node.devices) < 2:
                pytest.skip("needs two devices")
            async with aio.Group(node.devices[:2]) as group:
                arrays = [device.full(8, rank + 1, np.float32) for rank, device in enumerate(group.devices)]
                if operation == "batch":
                    with group.batch():
                        group.send(arrays[0], 1)
                        group.recv(arrays[1], 0)
                    expected = 1
                else:
                    summed = group.all_reduce(arrays)
                    assert type(summed[0]) is aio.DeviceArray
                    expected = 3
                group.synchronize()
                assert (await arrays[1].get() == expected).all()
                assert await group.flight_recorder()
                half = await group.subgroup([1])
                assert len(half) == 1
                with pytest.raises(hearth.ArgumentError, match="ranks is 1"):
                    await group.subgroup(1)  # type: ignore[arg-type]
            with pytest.raises(hearth.ClosedError):
                group.barrier()

    run(main)


def test_ranks_of_a_larger_group_are_paired_before_they_send(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node, connect(daemon) as other, connect(daemon) as third:
            if len(node.devices) < 2:
                pytest.skip("needs two devices")
            devices = [node.device(0), other.device(1), third.device(0)]
            arrays = [device.full(8, rank, np.float32) for rank, device in enumerate(devices)]
            async with aio.Group(devices) as group:
                with pytest.raises(hearth.ArgumentError, match="pair"):
                    group.send(arrays[0], 1)
                for rank, peer, named in (
                    (0, 3, "peer is 3"),
                    ("a", 1, "rank is 'a'"),
                    (0, -2, "peer is -2"),
                    (True, 0, "rank"),
                ):
                    with pytest.raises(hearth.ArgumentError, match=named) as caught:
                        await group.pair(rank, peer)  # type: ignore[arg-type]
                    assert caught.value.fix
                await group.pair(0, 1)
                arrays[0].fill(5)
                group.send(arrays[0], 1)
                group.recv(arrays[1], 0)
                assert (await arrays[1].get() == 5).all()

    run(main)


def test_a_group_over_sessions(daemon: DaemonProcess) -> None:
    """The group is formed with an await, as over several daemons."""

    async def main() -> None:
        async with connect(daemon) as node, connect(daemon) as other:
            if len(node.devices) < 2:
                pytest.skip("needs two devices")
            devices = [node.device(0), other.device(1)]
            arrays = [device.full(8, rank + 1, np.float32) for rank, device in enumerate(devices)]
            unformed = aio.Group(devices)
            with pytest.raises(hearth.ArgumentError, match="await"):
                unformed.all_reduce(arrays)
            async with unformed as group:
                group.all_reduce(arrays)
                assert (await arrays[0].get() == 3).all() and (await arrays[1].get() == 3).all()
                arrays[0].fill(5)
                group.send(arrays[0], 1)
                group.recv(arrays[1], 0)
                assert (await arrays[1].get() == 5).all()
                fresh = await group.rebuild()
                assert group.closed and len(fresh) == 2
                fresh.barrier()
                await fresh.close()
            cancelled = asyncio.ensure_future(_awaited(aio.Group(devices)))
            await asyncio.sleep(0.002)
            cancelled.cancel()
            await asyncio.wait([cancelled])

    run(main)


def test_groups_accept_devices_of_their_client_only(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            with daemon.connect() as blocking:
                for make, members in (
                    (aio.Group, [object()]),
                    (aio.Group, [node.gpu, blocking.gpu]),
                    (aio.Group, node),
                    (aio.Group, node.gpu),
                    (hearth.Group, [node.gpu]),
                ):
                    with pytest.raises(hearth.DtypeError, match="device") as caught:
                        make(members)  # type: ignore[operator]
                    assert "Group" in caught.value.fix
                assert len(hearth.Group(blocking.devices)) == len(aio.Group(node.devices))

    run(main)


async def _awaited(group: aio.Group) -> aio.Group:
    return await group


def test_kernel_output_is_delivered_in_the_loop(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon) as node:
            gpu, told = node.device(0), []
            gpu.on_output(lambda text: told.append((text, threading.current_thread())))
            say = gpu.RawKernel('extern "C" __global__ void say() { printf("hello\\n"); }', "say")
            say((1,), (1,), ())
            await gpu.synchronize()
            assert told == [("hello\n", threading.current_thread())]

    run(main)


def test_progress_is_reported_in_the_loop(daemon: DaemonProcess) -> None:
    async def main() -> None:
        async with connect(daemon, "grpc") as node:
            gpu = node.device(0)
            steps: list[tuple[int, int, Callable[[], Any]]] = []

            def report(done: int, total: int) -> None:
                steps.append((done, total, asyncio.get_running_loop))

            x = gpu.asarray(np.zeros(LARGE), progress=report)
            await x.get(progress=report)
            await asyncio.sleep(0.01)
            assert [done for done, _, _ in steps].count(8 * LARGE) == 2

    run(main)
