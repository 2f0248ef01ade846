"""Mistakes that type checkers find: each line with a mistake has a comment with mypy's code."""

from __future__ import annotations

import numpy as np

import hearth
from hearth import aio


def arrays(gpu: hearth.Device) -> None:
    x = gpu.zeros(4, np.float32)
    x + x  # E: operator
    2 * x  # E: operator
    print(x < 3)  # E: operator
    x.sum()  # E: attr-defined
    x.get("out")  # E: arg-type
    x.fill()  # E: call-arg
    x.astype(np.int32, casting="any")  # E: arg-type
    x.shape = (2, 2)  # E: misc
    x.copy_from(np.zeros(4))  # E: arg-type
    text: str = x.nbytes  # E: assignment
    print(text)


def launches(gpu: hearth.Device) -> None:
    kernel = gpu.RawModule(code=3).get_function("f")  # E: arg-type
    kernel((1,), (1,), 5)  # E: arg-type
    kernel((1,), (1,), (), threads=4)  # E: arg-type
    gpu.RawKernel("code")  # E: call-arg
    gpu.stream(priority="high")  # E: arg-type


async def clients(x: hearth.DeviceArray, y: aio.DeviceArray) -> None:
    x.device.nothing()  # E: attr-defined
    y.device.node.nothing()  # E: attr-defined
    x.tensor_map((2, 2)).array.nothing()  # E: attr-defined
    stream: hearth.Stream = y.device.stream()  # E: assignment
    function: hearth.Function = y.device.RawKernel("code", "f")  # E: assignment
    node: hearth.Node = y.device.node  # E: assignment
    print(stream, function, node)


def sessions() -> None:
    node = hearth.connect(7421)  # E: arg-type
    hearth.connect(isolation="none")  # E: arg-type
    hearth.connect(timout=3)  # E: arg-type
    node.device("0")  # E: arg-type
    node.devices[0].nothing()  # E: attr-defined
    hearth.nothing()  # E: attr-defined
    hearth.retrying(30)  # E: call-arg
    try:
        node.close()
    except hearth.CompileError as error:
        error.log.append("")  # E: attr-defined
