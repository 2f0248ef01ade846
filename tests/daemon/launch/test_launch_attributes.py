"""Launch attributes on every form of launch: the same results, on any backend, and errors that name the attribute."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import hearth
import hearth.aio
from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess
from tests.support.daemon.kernels import COMMON
from tests.support.daemon.raw import Raw, refused

N = 256
CODE = r"""
extern "C" __global__ void chain(const int* x, int* y, int n) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 3 * x[(i + 1) % n] + 1;
}
"""


@pytest.fixture
def chain(gpu: hearth.Device) -> hearth.Function:
    return gpu.RawModule(code=CODE).get_function("chain")


def supported(gpu: hearth.Device, **more: Any) -> hearth.LaunchAttributes:
    """Returns the attributes that the device has; `more` may contain a window."""
    features = gpu.properties.features
    if "access_policy_window" not in features:
        more.pop("access_policy_window", None)
    return hearth.LaunchAttributes(
        programmatic_stream_serialization="programmatic_launch" in features,
        mem_sync_domain="remote" if "memory_sync_domains" in features else "default",
        priority=-2,
        **more,
    )


def by_chain(x: np.ndarray, times: int) -> np.ndarray:
    for _ in range(times):
        x = (3 * np.roll(x, -1) + 1).astype(np.int32)
    return x


START = np.arange(N, dtype=np.int32)


def launched(gpu: hearth.Device, chain: hearth.Function, attributes: hearth.LaunchAttributes, times: int) -> np.ndarray:
    """Returns the result of a chain of launches, each of which reads the values that the previous one wrote."""
    x, y = gpu.asarray(START), gpu.zeros(N, np.int32)
    for _ in range(times):
        chain((2,), (128,), (x, y, np.int32(N)), attributes=attributes)
        x, y = y, x
    return x.get()


def test_direct_launches(gpu: hearth.Device, chain: hearth.Function) -> None:
    weights = gpu.zeros(1024, np.float32)
    for attributes in (
        hearth.LaunchAttributes(),
        hearth.LaunchAttributes(priority=100),
        supported(gpu),
        supported(gpu, access_policy_window=hearth.AccessPolicyWindow(weights[16:512], 0.5)),
    ):
        np.testing.assert_array_equal(launched(gpu, chain, attributes, 9), by_chain(START, 9))


def test_prepared_launches_and_graphs(gpu: hearth.Device, chain: hearth.Function) -> None:
    attributes = supported(gpu, access_policy_window=hearth.AccessPolicyWindow(gpu.zeros(1024), 1, "streaming"))
    x, y = gpu.asarray(START), gpu.zeros(N, np.int32)

    def pair() -> None:
        chain((2,), (128,), (x, y, np.int32(N)), attributes=attributes)
        chain((2,), (128,), (y, x, np.int32(N)), attributes=attributes)

    with gpu.prepared() as prepared:
        pair()
    prepared.launch(3)
    with gpu.graph() as graph:
        pair()
        y.fill(7)
        pair()
    graph.launch(2)
    np.testing.assert_array_equal(x.get(), by_chain(START, 6 + 8))
    other = gpu.zeros(N, np.int32)
    graph.nodes[0].set_args((x, other, np.int32(N)))
    graph.launch()
    np.testing.assert_array_equal(other.get(), by_chain(START, 15))


def test_a_list_keeps_the_array_of_its_window(gpu: hearth.Device, chain: hearth.Function) -> None:
    if "access_policy_window" not in gpu.properties.features:
        pytest.skip("the device has no access-policy windows")
    x, y, weights = gpu.asarray(START), gpu.zeros(N, np.int32), gpu.zeros(1 << 20, np.int8)
    attributes = hearth.LaunchAttributes(access_policy_window=hearth.AccessPolicyWindow(weights))
    with gpu.prepared() as prepared:
        chain((2,), (128,), (x, y, np.int32(N)), attributes=attributes)
    in_use = gpu.memory_usage().bytes_in_use
    weights.free()
    prepared.launch()
    assert gpu.memory_usage().bytes_in_use == in_use
    np.testing.assert_array_equal(y.get(), by_chain(START, 1))
    with pytest.raises(hearth.InvalidHandleError, match="access-policy window"):
        chain((2,), (128,), (x, y, np.int32(N)), attributes=attributes)
    prepared.close()
    gpu.synchronize()
    assert gpu.memory_usage().bytes_in_use <= in_use - (1 << 20)


def test_dispatches(gpu: hearth.Device, chain: hearth.Function) -> None:
    attributes = supported(gpu, access_policy_window=hearth.AccessPolicyWindow(gpu.zeros(1024)))
    args = [START, hearth.Out(N, np.int32), np.int32(N)]
    for _ in range(2):
        (out,) = gpu.dispatch(chain, 2, 128, args, attributes=attributes)
        np.testing.assert_array_equal(out, by_chain(START, 1))
    (out,) = gpu.dispatch_async(chain, 2, 128, args, attributes=attributes).result()
    np.testing.assert_array_equal(out, by_chain(START, 1))


def test_in_asyncio(daemon: DaemonProcess) -> None:
    async def run() -> None:
        async with hearth.aio.connect(daemon.unix) as node:
            gpu = node.device(0)
            chain = gpu.RawModule(code=CODE).get_function("chain")
            attributes = hearth.LaunchAttributes(priority=-1)
            (out,) = await gpu.dispatch(
                chain, 2, 128, [START, hearth.Out(N, np.int32), np.int32(N)], attributes=attributes
            )
            np.testing.assert_array_equal(out, by_chain(START, 1))

    asyncio.run(run())


def test_other_modes_of_a_launch(gpu: hearth.Device, chain: hearth.Function) -> None:
    grid = gpu.asarray(np.array([2, 1, 1], np.uint32))
    x, y = gpu.asarray(START), gpu.zeros(N, np.int32)
    attributes = supported(gpu, access_policy_window=hearth.AccessPolicyWindow(x))
    for mode in ("checked", "unchecked", "validate"):
        y.fill(0)
        chain(grid, 128, (x, y, np.int32(N)), mode=mode, attributes=attributes)
        np.testing.assert_array_equal(y.get(), by_chain(START, 1))
    chain(2, 128, (x, y, np.int32(N)), iterations=5, cooperative=True, attributes=hearth.LaunchAttributes(priority=0))
    np.testing.assert_array_equal(y.get(), by_chain(START, 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: hearth.LaunchAttributes(priority=1.5), "priority is 1.5"),  # type: ignore[arg-type]
        (lambda x: hearth.LaunchAttributes(priority=True), "priority is True"),
        (lambda x: hearth.LaunchAttributes(priority=2**31), "priority is 2147483648"),
        (lambda x: hearth.LaunchAttributes(mem_sync_domain="far"), "mem_sync_domain is 'far'"),  # type: ignore[arg-type]
        (lambda x: hearth.LaunchAttributes(1), "programmatic_stream_serialization is 1"),  # type: ignore[arg-type]
        (lambda x: hearth.LaunchAttributes(access_policy_window=x), "access_policy_window is DeviceArray"),
        (lambda x: hearth.AccessPolicyWindow(np.zeros(3)), "array is array"),
        (lambda x: hearth.AccessPolicyWindow(x[::2]), "array is DeviceArray"),
        (lambda x: hearth.AccessPolicyWindow(x[:0]), "array is DeviceArray"),
        (lambda x: hearth.AccessPolicyWindow(x, 1.01), "hit_ratio is 1.01"),
        (lambda x: hearth.AccessPolicyWindow(x, "half"), "hit_ratio is 'half'"),  # type: ignore[arg-type]
        (lambda x: hearth.AccessPolicyWindow(x, hit="sticky"), "hit is 'sticky'"),  # type: ignore[arg-type]
        (lambda x: hearth.AccessPolicyWindow(x, miss="persisting"), "miss is 'persisting'"),  # type: ignore[arg-type]
    ],
)
def test_invalid_values_are_refused_when_they_are_given(gpu: hearth.Device, make: Any, words: str) -> None:
    with pytest.raises(hearth.ArgumentError) as caught:
        make(gpu.zeros(8))
    assert words in caught.value.message and caught.value.fix


def test_wrong_keywords(gpu: hearth.Device, daemon: DaemonProcess, chain: hearth.Function) -> None:
    x, y = gpu.asarray(START), gpu.zeros(N, np.int32)
    for wrong in ({"priority": 1}, 5):
        with pytest.raises(hearth.ArgumentError, match="attributes is"):
            chain(2, 128, (x, y, np.int32(N)), attributes=wrong)  # type: ignore[arg-type]
    with daemon.connect() as other:
        theirs = hearth.AccessPolicyWindow(other.device(0).zeros(8))
        with pytest.raises(hearth.ArgumentError, match="another device or session"):
            chain(2, 128, (x, y, np.int32(N)), attributes=hearth.LaunchAttributes(access_policy_window=theirs))


def test_windows_that_are_too_large(gpu: hearth.Device, chain: hearth.Function) -> None:
    limit = gpu.properties.access_policy_max_window_size
    if not limit:
        pytest.skip("the device has no access-policy windows")
    x, y, large = gpu.asarray(START), gpu.zeros(N, np.int32), gpu.empty(limit + 1, np.int8)
    fits = hearth.LaunchAttributes(access_policy_window=hearth.AccessPolicyWindow(large[:limit]))
    chain(2, 128, (x, y, np.int32(N)), attributes=fits)
    gpu.synchronize()
    exceeds = hearth.LaunchAttributes(access_policy_window=hearth.AccessPolicyWindow(large))
    chain(2, 128, (x, y, np.int32(N)), attributes=exceeds)
    with pytest.raises(hearth.LaunchError) as caught:
        gpu.synchronize()
    assert caught.value.reason == "LAUNCH_INVALID" and str(limit + 1) in caught.value.message
    assert str(limit) in caught.value.message and "access_policy_max_window_size" in caught.value.fix


def test_the_readable_form(raw: Raw) -> None:
    """Other languages send `Launch` with the same attributes as a message."""
    buffer = raw.buffer(bytes(64))
    module, function = raw.mint(), raw.mint()
    raw.call("LoadModule", c.LoadModule(module=module, kind=c.CODE_KIND_CUDA_CPP, code=COMMON.encode()))
    raw.call("GetFunction", c.GetFunction(function=function, module=module, name="add_one"))
    pointer = c.Argument(pointer=c.Argument.Pointer(buffer=buffer))
    launch = c.Launch(
        function=function, grid=c.Dim3(x=1), block=c.Dim3(x=16), arguments=[pointer, c.Argument(int32=16)],
        attributes=c.LaunchAttributes(priority=-1),
    )  # fmt: skip
    raw.call("Launch", launch)
    window = c.AccessPolicyWindow(buffer=buffer, offset=60, size=8, hit_ratio=1)
    launch.attributes.access_policy_window.CopyFrom(window)
    error = refused(raw.call, "Launch", launch)
    assert error.reason in ("OUT_OF_BOUNDS", "UNSUPPORTED") and error.fix
