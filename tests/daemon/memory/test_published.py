"""Published buffers: names, descriptions, order, and access of other tenants."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess, StartDaemon
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.published import WEIGHTS, published, reason_of, same
from tests.support.daemon.raw import TIMEOUT, Raw, refused
from tests.support.daemon.tenants import tenants

# ---- names ----


def test_published_and_attached(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    w = other.attach("weights")
    assert (w.shape, w.dtype) == (x.shape, x.dtype)
    same(w)
    same(x)  # the publisher can still use it
    (listed,) = other.published()
    assert listed == hearth.PublishedArray("weights", "default", x.nbytes, x.shape, x.dtype, 1)
    gpu.unpublish("weights")
    assert other.published() == []
    same(w)


def test_names(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu)
    assert reason_of(gpu.publish, "weights", gpu.zeros(4)) == "NAME_IN_USE"
    assert reason_of(other.publish, "weights", other.zeros(4)) == "NAME_IN_USE"
    assert reason_of(gpu.publish, "", x) == "INVALID_ARGUMENT"
    assert reason_of(gpu.publish, "a\nb", gpu.zeros(4)) == "INVALID_ARGUMENT"
    assert reason_of(other.attach, "nothing") == "NOT_PUBLISHED"
    assert reason_of(other.unpublish, "nothing") == "NOT_PUBLISHED"
    assert reason_of(gpu.publish, "again", x) == "INVALID_ARGUMENT"  # a buffer has only one name
    other.unpublish("weights")  # by another session of the same tenant
    assert reason_of(other.attach, "weights") == "NOT_PUBLISHED"
    x.publish("Gewichte, zweite Fassung")
    same(other.attach("Gewichte, zweite Fassung"))


def test_next_version_under_the_same_name(gpu: hearth.Device, other: hearth.Device) -> None:
    first = published(gpu)
    old = other.attach("weights")
    gpu.unpublish("weights")
    second = published(gpu, host=WEIGHTS + 1)
    new = other.attach("weights")
    same(old)
    same(new, WEIGHTS + 1)
    del first, second


def test_names_of_another_device_are_separate(daemon: DaemonProcess, pair: list[hearth.Device]) -> None:
    here = published(pair[0])
    there = published(pair[1], host=WEIGHTS * 2)
    with daemon.connect() as node:
        same(node.device(0).attach("weights"))
        same(node.device(1).attach("weights"), WEIGHTS * 2)
    del here, there


@pytest.mark.parametrize("dtype", ["f2", "i1", "u8", "c16", "?", "S7", "M8[ms]"])
def test_dtypes(gpu: hearth.Device, node: hearth.Node, dtype: str) -> None:
    host = np.zeros((2, 0, 3) if dtype == "u8" else 5, dtype)
    x = published(gpu, host=host)
    w = gpu.attach("weights")
    assert (w.shape, w.dtype) == (host.shape, host.dtype)
    np.testing.assert_array_equal(w.get(), host)
    del x


def test_structs_are_published_as_bytes(gpu: hearth.Device, other: hearth.Device) -> None:
    host = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
    x = gpu.asarray(host)
    assert reason_of(x.publish, "structs") == "UNSUPPORTED"
    x.view(np.uint8).publish("structs")
    w = other.attach("structs", shape=2, dtype=host.dtype)
    np.testing.assert_array_equal(w.get(), host)
    assert reason_of(other.attach, "structs", shape=3, dtype=host.dtype) == "INVALID_ARGUMENT"


def test_only_whole_buffers(gpu: hearth.Device, other: hearth.Device) -> None:
    x = gpu.asarray(WEIGHTS)
    for part in (x[1:], x[:, :10], x[:50], gpu.empty_pitched((3, 5), np.float32)):
        assert reason_of(part.publish, "part") == "INVALID_ARGUMENT"
    x.reshape(-1).publish("all")  # a view of the whole array
    same(other.attach("all"), WEIGHTS.reshape(-1))
    same(other.attach("all", shape=WEIGHTS.shape, dtype="f4"))


def test_invalid_arrays_cannot_be_published(gpu: hearth.Device, other: hearth.Device) -> None:
    assert reason_of(gpu.publish, "x", WEIGHTS) == "INVALID_ARGUMENT"
    assert reason_of(gpu.publish, "x", other.zeros(3)) == "UNSUPPORTED"
    freed = gpu.zeros(3)
    freed.free()
    assert reason_of(gpu.publish, "x", freed) == "INVALID_HANDLE"


def test_zero_bytes(gpu: hearth.Device, other: hearth.Device) -> None:
    x = published(gpu, host=np.zeros((0, 3), np.int16))
    w = other.attach("weights")
    assert w.shape == (0, 3)
    assert w.get().size == 0
    del x


# ---- descriptions are untrusted data ----


def publish_raw(raw: Raw, name: str, size: int, description: bytes) -> None:
    request = device_pb2.PublishRequest(
        target=raw.target(), buffer=raw.buffer(bytes(range(size))), name=name, description=description
    )
    raw.device.Publish(request, timeout=TIMEOUT)


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 4000,
        b'{"shape": [4], "dtype": "O"}',
        b'{"shape": [4], "dtype": "(2,3)f4"}',
        b'{"shape": [4], "dtype": ["f4"]}',
        b'{"shape": [-4], "dtype": "u1"}',
        b'{"shape": [4.0], "dtype": "u1"}',
        b'{"shape": [true], "dtype": "u1"}',
        b'{"shape": [9223372036854775807, 4], "dtype": "u1"}',
        b'{"shape": ' + str([1] * 65).encode() + b', "dtype": "u1"}',
        b'{"shape": "4", "dtype": "u1"}',
        b'{"shape": [4], "dtype": "S99999999999999999999"}',
    ],
)
def test_arrays_with_an_invalid_description_need_an_explicit_dtype(
    raw: Raw, gpu: hearth.Device, description: bytes
) -> None:
    publish_raw(raw, "odd", 16, description)
    (listed,) = gpu.published()
    assert (listed.shape, listed.dtype, listed.nbytes) == (None, None, 16)
    assert reason_of(gpu.attach, "odd") == "INVALID_ARGUMENT"
    seen = gpu.attach("odd", dtype=np.uint8)
    same(seen, np.arange(16, dtype=np.uint8))
    assert gpu.published()[0].attached == 1  # the buffer with the invalid description is no longer attached


def test_description_that_does_not_fit(raw: Raw, gpu: hearth.Device) -> None:
    publish_raw(raw, "odd", 16, b'{"shape": [5], "dtype": "<f4"}')
    assert reason_of(gpu.attach, "odd") == "INVALID_ARGUMENT"
    assert gpu.attach("odd", shape=(2, 2)).shape == (2, 2)
    assert (gpu.published()[0].shape, gpu.published()[0].dtype) == (None, None)


# ---- order ----


def test_publishing_waits_for_the_work_before(other: hearth.Device, raw: Raw) -> None:
    spin = raw.function(COMMON, "spin")
    one = c.Dim3(x=1, y=1, z=1)
    for number in range(5):
        buffer = raw.buffer(bytes(4))
        raw.call("Launch", c.Launch(function=spin, grid=one, block=one, arguments=[c.Argument(int64=20_000_000)]))
        raw.call("Fill", c.Fill(buffer=buffer, size=4, pattern=b"\5\0\0\0"))
        request = device_pb2.PublishRequest(target=raw.target(), buffer=buffer, name=f"n{number}")
        raw.device.Publish(request, timeout=TIMEOUT)
        assert other.attach(f"n{number}", dtype=np.int32).get()[0] == 5


def test_failed_contents_are_not_published(raw: Raw) -> None:
    with raw.execute() as stream:
        buffer = raw.mint()
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=buffer, size=16)),
            # fails, so that the contents are invalid
            c.Command(copy=c.Copy(destination=buffer, source=buffer, size=99)),
        )
        stream.ask(c.Command(memory_usage=c.MemoryUsage()))  # both commands have been executed by now
        request = device_pb2.PublishRequest(target=raw.target(), buffer=buffer, name="weights")
        assert refused(raw.device.Publish, request, timeout=TIMEOUT).reason is Reason.DEPENDENCY_FAILED
        again = c.Command(fill=c.Fill(buffer=buffer, size=16, pattern=b"\1"))
        assert not stream.ask(again).HasField("error")  # the buffer is writable as before, and the name is free
        raw.device.Publish(request, timeout=TIMEOUT)


def test_handles(raw: Raw, gpu: hearth.Device) -> None:
    x = published(gpu)
    taken = raw.buffer(b"1234")
    for handle, expected in ((taken, Reason.HANDLE_IN_USE), (0, Reason.INVALID_ARGUMENT)):
        request = device_pb2.AttachBufferRequest(target=raw.target(), buffer=handle, name="weights")
        assert refused(raw.device.AttachBuffer, request, timeout=TIMEOUT).reason is expected
    request = device_pb2.PublishRequest(target=raw.target(), buffer=999, name="other")
    assert refused(raw.device.Publish, request, timeout=TIMEOUT).reason is Reason.INVALID_HANDLE
    assert [one.name for one in gpu.published()] == ["weights"]
    assert gpu.published()[0].attached == 0
    del x


# ---- tenants ----


@pytest.mark.parametrize("isolation", ["tenant", "shared"])
def test_other_tenants_attach_granted_arrays_only(start_daemon: StartDaemon, isolation: str) -> None:
    config, tokens = tenants("alice", "bob", "carol", devices={"isolation": isolation})
    daemon = start_daemon(**config)
    with contextlib.ExitStack() as stack:
        alice, bob, carol = (
            stack.enter_context(daemon.connect(token=tokens[name])).device(0) for name in ("alice", "bob", "carol")
        )
        private, granted, public = (alice.full(100, number, np.int32) for number in range(3))
        private.publish("private")
        granted.publish("granted", tenants=["bob"])
        public.publish("public", tenants="*")
        same(bob.attach("granted", tenant="alice"), np.full(100, 1, np.int32))
        same(bob.attach("public", tenant="alice"), np.full(100, 2, np.int32))
        same(carol.attach("public", tenant="alice"), np.full(100, 2, np.int32))
        for device, name in ((bob, "private"), (carol, "private"), (carol, "granted")):
            with pytest.raises(hearth.InvalidHandleError) as there:
                device.attach(name, tenant="alice")
            with pytest.raises(hearth.InvalidHandleError) as absent:
                device.attach("absent", tenant="alice")
            assert there.value.message.replace(name, "absent") == absent.value.message
        # bob's own tenant has published no buffer of that name
        assert reason_of(bob.attach, "public") == "NOT_PUBLISHED"
        assert reason_of(bob.unpublish, "granted") == "NOT_PUBLISHED"
        assert [(one.tenant, one.name) for one in bob.published()] == [("alice", "granted"), ("alice", "public")]
        assert [one.name for one in carol.published()] == ["public"]
        bob.zeros(3).publish("public")  # each tenant has its own names
        assert [one.tenant for one in bob.published()] == ["bob", "alice", "alice"]
        assert alice.memory_usage().bytes_in_use == 1200
        assert bob.memory_usage().bytes_in_use == 24
