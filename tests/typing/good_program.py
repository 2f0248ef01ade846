"""A typical user's program, which type checkers accept in strict mode."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

import hearth
from hearth import DeviceArray, Node, aio

Launch = Callable[..., None]


@hearth.retrying(timeout=30, idempotent=True)
def saxpy(gpu: hearth.Device, a: float, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    module = gpu.RawModule(code="source", options=("-DN=4",), name_expressions=["scale<float>"])
    kernel: hearth.Function = module.get_function("saxpy")
    on_device = gpu.asarray(x)
    y = gpu.zeros(x.shape, np.float32)
    kernel((4,), (256,), (np.float32(a), on_device, y, np.int32(x.size)), shared_mem=1024, mode="unchecked")
    launch: Launch = kernel[4, 256]
    launch(np.float32(a), on_device, y, np.int32(x.size))
    result: npt.NDArray[np.float32] = y.get()
    return result


def arrays(gpu: hearth.Device) -> list[int]:
    x = gpu.empty((3, 4), np.float32)
    x[1:, ::2] = 7
    x[0] = np.arange(4)
    x[...] = x[1]
    rows: list[DeviceArray] = [row.reshape(-1) for row in x]
    total = float(x[0, 0]) + int(x[0, 1]) + x.item(3)
    y = x.astype("bfloat16").astype(np.float64, copy=False, casting="unsafe").squeeze().transpose()
    shape: tuple[int, ...] = y.T.shape
    host = np.asarray(y)
    with x.ipc() as view:
        print(view.address, f"{x[0, 0]:.2f}", total, host.dtype, len(x), bool(x[0, 0]))
    return [*shape, *(row.nbytes for row in rows), *x.flatten().strides]


def back(x: DeviceArray) -> Node:
    gpu: hearth.Device = x.device
    array: DeviceArray = x.tensor_map((2, 2)).array
    stream: hearth.Stream = gpu.current_stream
    event: hearth.Event = stream.record()
    done: bool = stream.done or event.done
    variable: DeviceArray = gpu.RawModule(code="source").get_global("table", np.float32)
    variable.set(np.zeros(3, np.float32))
    print(array.device.node.name, done, event.elapsed(stream.record()))
    return gpu.node


async def asynchronous(x: aio.DeviceArray) -> aio.Node:
    gpu: aio.Device = x.device
    array: aio.DeviceArray = x.tensor_map((2, 2)).array
    with gpu.stream() as stream:
        event: aio.Event = stream.record()
        current: aio.Stream = gpu.current_stream
    done: bool = await current.done() or await event.done()
    kernel: aio.Function = gpu.RawModule(code="source").get_function("f")
    async with gpu.graph() as graph, gpu.profile() as profile:
        kernel(1, 1, (array,))
    graph.launch(await kernel.num_regs())
    results: list[npt.NDArray[np.float32]] = await gpu.dispatch_async(kernel, 1, 1, outs=[(3, np.float32)]).result()
    print(done, profile.device_ns, results, await event.elapsed(stream.record()))
    return array.device.node


def work(node: Node) -> None:
    gpu = node.device(0)
    with gpu.profile() as p, gpu.trace(max_events=10) as t, hearth.show_progress():
        gpu.synchronize(timeout=1.0)
    spent: int = p.device_ns + p.wall_ns + sum(event.device_ns for event in t.events)
    with gpu.stream(priority=-1) as stream, gpu.graph() as graph:
        gpu.ones(3, stream=stream).fill(2)
    graph.launch(spent)
    group = hearth.Group(node.devices)
    group.all_reduce([device.ones(3) for device in node.devices], op="mean")
    usage = gpu.memory_usage()
    print(usage.bytes_in_use + usage.device_free, gpu.properties.compute_capability[0])


def careful() -> float | None:
    try:
        with hearth.connect("host:7421", timeout=3.0, wait_for_ready=True, isolation="dedicated") as node:
            work(node)
            print(saxpy(node.device(), 2.0, np.ones(3, np.float32)), arrays(node.device(0)))
    except hearth.CompileError as error:
        print(error.log)
    except (hearth.QuotaExceededError, hearth.UnavailableError) as error:
        return error.retry_after if error.retryable else None
    except hearth.HearthError as error:
        print(error.reason, error.fix, error.details.get("requested"), [failure.command for failure in error.failures])
    return None
