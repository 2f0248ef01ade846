"""Durable arrays: copies taken at a point of a stream, and restored bit for bit after the loss of the device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import hearth
from hearth_proto import reasons
from hearth_proto.v1 import commands_pb2 as c
from tests.support.client.internals import handle_of
from tests.support.daemon.durables import (
    FAR,
    FAULTS,
    MIB,
    QUICK,
    damage,
    durable_files,
    kill,
    lose,
    noise,
    open_files,
    wait_serving,
)
from tests.support.daemon.harness import DaemonProcess, StartDaemon, wait_until
from tests.support.daemon.kernels import gated, saxpy_works
from tests.support.daemon.raw import Execute, Raw


def by_wild_pointer(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    gpu.RawModule(code=FAULTS).get_function("wild")((1,), (1,), (gpu.zeros(8, np.int32), FAR))
    with pytest.raises(hearth.DeviceLostError):
        gpu.synchronize()


def by_endless_kernel(daemon: DaemonProcess, gpu: hearth.Device) -> None:
    gpu.RawModule(code=FAULTS).get_function("endless")((1,), (1,), (gpu.zeros(8, np.int32),), timeout=0.1)
    with pytest.raises(hearth.DeviceLostError):
        gpu.synchronize()


@pytest.mark.parametrize("loss", [lose, by_wild_pointer, by_endless_kernel])
def test_restored_arrays_are_identical(
    lossy: DaemonProcess, loss: Callable[[DaemonProcess, hearth.Device], None]
) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        hosts = [noise(size, size) for size in (0, 1, 3, 4095, 4097, 5 * MIB)]
        arrays = gpu.durable(*map(gpu.asarray, hosts))
        assert isinstance(arrays, list)
        matrix = noise(37 * 1000).view(np.int8).reshape(37, 1000)
        pitched = gpu.durable(gpu.empty_pitched(matrix.shape, matrix.dtype))
        pitched.set(matrix)
        part = pitched[3:9, 10:20]
        assert part.durable
        pitched.checkpoint()
        passing = gpu.ones(16, np.int32)
        gpu.synchronize()
        first = gpu.generation
        for generation in (first + 1, first + 2):
            loss(lossy, gpu)
            for array, host in zip(arrays, hosts, strict=True):
                np.testing.assert_array_equal(array.get(), host)
            np.testing.assert_array_equal(pitched.get(), matrix)
            np.testing.assert_array_equal(part.get(), matrix[3:9, 10:20])
            assert gpu.generation == generation
            with pytest.raises(hearth.BufferLostError):
                passing.get()
            assert gpu.memory_usage().allocations == len(arrays) + 1
        saxpy_works(gpu)


def test_restored_array_is_fully_usable(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.durable(gpu.asarray(np.arange(1000, dtype=np.int32)))
        set_all = gpu.RawModule(code=FAULTS).get_function("set_all")
        gpu.synchronize()
        lose(lossy, gpu)
        set_all((1,), (32,), (x[10:20], np.int32(10), np.int32(-7)))
        want = np.arange(1000, dtype=np.int32)
        want[10:20] = -7
        np.testing.assert_array_equal(x.get(), want)
        x.checkpoint()
        gpu.synchronize()
        x.fill(3)
        lose(lossy, gpu)
        np.testing.assert_array_equal(x.get(), want)  # as of the checkpoint, without the fill
        x.set(want[::-1])
        np.testing.assert_array_equal(x.get(), want[::-1])
        lose(lossy, gpu)
        np.testing.assert_array_equal(x.get(), want)
        fresh = gpu.zeros(10)  # no handle is reused
        assert handle_of(fresh) != handle_of(x)
        x.free()
        gpu.synchronize()
        assert gpu.memory_usage().allocations == 1 and gpu.memory_usage().bytes_durable == 0
        lose(lossy, gpu)
        assert gpu.memory_usage().allocations == 0


def test_checkpoint_waits_for_earlier_work_only(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x, y = gpu.durable(gpu.zeros(1000, np.int32), gpu.zeros(1000, np.int32))
        gpu.synchronize()
        done = lossy.counter("checkpoints")
        with gated(gpu) as gate:
            x.fill(1)
            x.checkpoint()
            gate.hold()
            y.fill(2)
            y.checkpoint()
            gpu.flush()  # all commands have been submitted: the stream is not blocked
            wait_until(lambda: lossy.counter("checkpoints") == done + 1, "the first checkpoint")
            lose(lossy, gpu)
            assert (x.get() == 1).all() and (y.get() == 0).all()
        y.fill(2)
        y.checkpoint()
        gpu.synchronize()
        lose(lossy, gpu)
        assert (y.get() == 2).all()


def test_a_synchronize_waits_for_the_copies_of_its_stream(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.durable(gpu.zeros(8 * MIB, np.uint8))
        side = gpu.stream()
        for value in range(1, 5):
            if value % 2:
                with side:
                    x.fill(value)
                    x.checkpoint()
                side.synchronize()
            else:
                x.fill(value)
                gpu.checkpoint()
                gpu.synchronize()
            lose(lossy, gpu)
            assert (x.get() == value).all()


@pytest.mark.parametrize("size", [1 * MIB, 72 * MIB])
def test_write_after_a_checkpoint_does_not_change_the_copy(lossy: DaemonProcess, size: int) -> None:
    """The second size exceeds the host memory that copies may hold together."""
    with lossy.connect() as node:
        gpu = node.device(0)
        set_all = gpu.RawModule(code=FAULTS).get_function("set_all")
        x = gpu.durable(gpu.zeros(size // 4, np.int32))
        side, n = gpu.stream(), np.int32(size // 4)
        for value in (1, 2):
            set_all((4,), (64,), (x, n, np.int32(value)))
            x.checkpoint()
            set_all((4,), (64,), (x, n, np.int32(100 + value)), stream=side)
            x.fill(200)
            gpu.synchronize()
            assert (x.get() == 200).all()
            lose(lossy, gpu)
            assert (x.get() == value).all()


def test_durable_arrays_of_sessions_are_separate(lossy: DaemonProcess) -> None:
    with lossy.connect() as first, lossy.connect() as second, lossy.connect() as bare:
        hosts = [noise(MIB, seed) for seed in (1, 2)]
        gpus = [first.device(0), second.device(0)]
        arrays = [gpu.durable(gpu.asarray(host)) for gpu, host in zip(gpus, hosts, strict=True)]
        assert isinstance(arrays[0], hearth.DeviceArray) and isinstance(arrays[1], hearth.DeviceArray)
        assert handle_of(arrays[0]) == handle_of(arrays[1])
        lost = bare.device(0).zeros(4)
        for gpu in (*gpus, bare.device(0)):
            gpu.synchronize()
        kill(lossy)
        for gpu, array, host in zip(gpus, arrays, hosts, strict=True):
            wait_serving(gpu)
            np.testing.assert_array_equal(array.get(), host)
        with pytest.raises((hearth.DeviceLostError, hearth.BufferLostError)):
            lost.get()
        second.close()
        kill(lossy)
        wait_serving(gpus[0])
        np.testing.assert_array_equal(arrays[0].get(), hosts[0])
        assert durable_files(lossy.process.pid).files == 1


def test_loss_is_reported_once_also_after_a_full_restore(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.durable(gpu.zeros(4, np.int32))
        gpu.synchronize()
        x.fill(1)
        kill(lossy)
        with pytest.raises(hearth.DeviceLostError):
            gpu.synchronize()
        assert x.get().tolist() == [0] * 4
        gpu.synchronize()
        x.fill(2)
        gpu.synchronize()
        kill(lossy)  # no copy is in progress, but the array must be as of the checkpoint
        wait_until(lambda: gpu.state == "serving", "the device's return")
        with pytest.raises(hearth.DeviceLostError):
            x.get()
        assert x.get().tolist() == [0] * 4
        gpu.synchronize()


# ---- cost, and the end of durability ----


def test_ended_durability_leaves_no_resources(lossy: DaemonProcess) -> None:
    front = lossy.process.pid
    lossy.gauge("durable_bytes")  # the first reading of a GPU opens descriptors that stay open
    descriptors = open_files(front)
    node = lossy.connect()
    gpu = node.device(0)
    x, y = gpu.durable(gpu.zeros(MIB, np.uint8), gpu.zeros(3 * MIB, np.uint8))
    gpu.checkpoint()
    gpu.synchronize()
    assert gpu.memory_usage().bytes_durable == 2 * 4 * MIB and lossy.gauge("durable_bytes") == 2 * 4 * MIB
    device = lossy.device_pid()
    assert durable_files(front) == durable_files(device) == (1, 2 * 4 * MIB)
    x.free()
    assert not x.durable
    gpu.synchronize()
    wait_until(lambda: durable_files(front).bytes == 2 * 3 * MIB, "the release of freed arrays")
    gpu.durable(y, durable=False)
    assert not y.durable
    gpu.synchronize()
    wait_until(lambda: durable_files(front).bytes == 0, "the release of arrays that are no longer durable")
    assert gpu.memory_usage().bytes_durable == 0 and y.get().sum() == 0
    gpu.durable(y)
    gpu.synchronize()
    assert durable_files(front).bytes == 3 * MIB
    lose(lossy, gpu)
    assert durable_files(front) == durable_files(lossy.device_pid()) == (1, 3 * MIB)
    node.close()
    wait_until(
        lambda: durable_files(front).files == durable_files(lossy.device_pid()).files == 0, "the end of the files"
    )
    wait_until(lambda: open_files(front) <= descriptors, "the end of other descriptors")


def test_ended_durability_stays_ended_after_a_loss(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        host = noise(1000)
        kept_on, ended, dropped, freed = (gpu.asarray(host) for _ in range(4))
        gpu.durable(kept_on, ended, dropped, freed)
        gpu.durable(ended, durable=False)
        gpu.synchronize()
        first = gpu.generation
        kill(lossy)
        wait_until(lambda: gpu.generation == first + 1 and gpu.state == "serving")
        freed.free()  # freed before the client attaches again: the restored buffer is freed immediately
        del dropped
        wait_serving(gpu)
        np.testing.assert_array_equal(kept_on.get(), host)
        with pytest.raises(hearth.BufferLostError):
            ended.get()
        with pytest.raises(hearth.InvalidHandleError):
            freed.get()
        gpu.synchronize()
        assert gpu.memory_usage().allocations == 1


def test_the_node_s_limit(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(sessions={"durable_bytes": "1MiB"}, devices=QUICK)
    with daemon.connect() as node, daemon.connect() as other:
        gpu, elsewhere = node.device(0), other.device(0)
        x = gpu.durable(gpu.zeros(300 << 10, np.uint8))
        gpu.synchronize()
        y = elsewhere.durable(elsewhere.zeros(300 << 10, np.uint8))
        with pytest.raises(hearth.QuotaExceededError) as caught:
            elsewhere.synchronize()
        error = caught.value
        assert error.reason == "QUOTA_EXCEEDED" and "the node" in str(error) and error.fix
        assert {key: error.details[key] for key in ("requested", "allowed", "in_use")} == {
            "requested": str(600 << 10), "allowed": str(1 << 20), "in_use": str(600 << 10),
        }  # fmt: skip
        assert elsewhere.memory_usage().bytes_durable == 0
        y.checkpoint()
        with pytest.raises(hearth.HearthError, match="never made durable"):
            elsewhere.synchronize()
        elsewhere.checkpoint()  # all durable arrays, of which there are none
        elsewhere.synchronize()
        lose(daemon, gpu)  # restored buffers count as before
        x.get()
        wait_serving(elsewhere)
        z = elsewhere.zeros(300 << 10, np.uint8)
        elsewhere.durable(z)
        with pytest.raises(hearth.QuotaExceededError):
            elsewhere.synchronize()
        x.free()
        gpu.synchronize()
        elsewhere.durable(z)
        elsewhere.synchronize()
        lose(daemon, elsewhere)
        assert z.get().sum() == 0


# ---- arrays that cannot be copied or restored ----


def test_checkpoint_skips_buffers_of_failed_commands(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x, y = gpu.durable(gpu.full(8, 1, np.int32), gpu.full(8, 1, np.int32))
        gpu.synchronize()
        set_all = gpu.RawModule(code=FAULTS).get_function("set_all")
        y.fill(2)
        set_all((1,), (1 << 20,), (x, np.int32(8), np.int32(9)))  # exceeds the maximum block size
        gpu.checkpoint(x, y)
        with pytest.raises(hearth.LaunchError) as caught:
            gpu.synchronize()
        assert {failure.command for failure in caught.value.failures} == {"launch set_all"}
        side = gpu.stream()
        set_all((1,), (1 << 20,), (x, np.int32(8), np.int32(9)))
        gpu.checkpoint(x, y, stream=side)
        with pytest.raises(hearth.HearthError) as skipped:
            side.synchronize()
        assert skipped.value.reason == "DEPENDENCY_FAILED" and "checkpoint" in str(skipped.value)
        with pytest.raises(hearth.LaunchError):
            gpu.synchronize()
        lose(lossy, gpu)
        assert (x.get() == 1).all() and (y.get() == 1).all()  # all are restored or none


def test_damaged_copy_is_reported_with_its_cause(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x = gpu.durable(gpu.ones(MIB, np.uint8))
        gpu.synchronize()
        damage(lossy.process.pid)
        lose(lossy, gpu)
        for _ in range(2):
            with pytest.raises(hearth.BufferLostError, match="cannot be read") as caught:
                x.get()
            assert caught.value.fix
        saxpy_works(gpu)
        assert "durable_lost" in lossy.log()
        x.free()
        gpu.synchronize()
        assert gpu.memory_usage().allocations == 0 and gpu.memory_usage().bytes_durable == 0


def test_invalid_uses_are_refused(gpu: hearth.Device, node: hearth.Node) -> None:
    x, host = gpu.zeros(4), np.zeros(4)
    for wrong, kind in (((), hearth.ArgumentError), ((host,), hearth.DtypeError)):
        with pytest.raises(kind):
            gpu.durable(*wrong)
    with pytest.raises(hearth.ArgumentError, match="not durable"):
        x.checkpoint()
    assert not x.durable
    variable = gpu.RawModule(code="__device__ int v;").get_global("v", np.int32)
    gpu.durable(variable)
    with pytest.raises(hearth.HearthError, match="variable") as caught:
        gpu.synchronize()
    assert caught.value.reason == "INVALID_ARGUMENT"
    with pytest.raises(hearth.HearthError), gpu.graph():
        gpu.durable(x)
    gpu.synchronize()
    x.free()
    with pytest.raises(hearth.InvalidHandleError):
        gpu.durable(x)


def test_malformed_commands_are_refused(raw: Raw, stream: Execute) -> None:
    def refusal(**kind: object) -> reasons.Refusal:
        return reasons.from_status(stream.ask(c.Command(**kind)).error)  # type: ignore[arg-type]

    assert refusal(set_durable=c.SetDurable(durable=True)).reason == "INVALID_ARGUMENT"
    unknown = refusal(set_durable=c.SetDurable(buffers=[1, 99], durable=True))
    assert unknown.reason == "INVALID_HANDLE"
    not_durable = refusal(checkpoint=c.Checkpoint(buffers=[1]))
    assert not_durable.reason == "INVALID_ARGUMENT" and not_durable.fix
    assert stream.ask(c.Command(checkpoint=c.Checkpoint())).HasField("done")  # all durable buffers
    twice = c.SetDurable(buffers=[1, 1], durable=True)
    assert stream.ask(c.Command(set_durable=twice)).HasField("done")
    assert stream.ask(c.Command(set_durable=twice)).HasField("done")  # it is durable already, and a new copy is made
    assert stream.ask(c.Command(checkpoint=c.Checkpoint(buffers=[1, 1]))).HasField("done")
    stream.batch(
        c.Command(checkpoint=c.Checkpoint(buffers=[1])),
        c.Command(set_durable=c.SetDurable(buffers=[1])),
        c.Command(checkpoint=c.Checkpoint(buffers=[1])),
        c.Command(set_durable=c.SetDurable(buffers=[1], durable=True)),
        c.Command(free=c.Free(buffers=[1])),
    )
    assert [failure.index for failure in stream.failures()] == [2]
    usage = stream.ask(c.Command(memory_usage=c.MemoryUsage())).memory_usage
    assert usage.bytes_durable == 0 and usage.allocations == 0
