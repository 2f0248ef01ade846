"""The kernel of `hearth run`: looked up in its module, and launched with its arrays."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hearth.cli.format.complaint import invalid_argument
from hearth.cli.run.report import Result, RunReport
from hearth.cli.run.spec import Array, Generated, Spec
from hearth.errors import HearthError

if TYPE_CHECKING:
    from hearth.blocking.device import Device
    from hearth.blocking.function import Function
    from hearth.blocking.node import Node


def load(arguments: argparse.Namespace, device: Device, code: bytes, headers: dict[str, str]) -> Function:
    """Returns the kernel of the module of `code`.

    Waits for the compile, and prints the compiler's warnings on stderr. Raises `ArgumentError` if the kernel is missing
    or ambiguous.
    """
    options = [f"-D{define}" for define in arguments.define] + arguments.option
    name: str | None = arguments.kernel
    templated = name is not None and not name.isidentifier()
    expressions = [name] if name is not None and templated else None
    module = device.RawModule(code, options=options, headers=headers, name_expressions=expressions)
    log = io.StringIO()
    module.compile(log)
    if log.getvalue():
        print(log.getvalue().rstrip("\n"), file=sys.stderr)
    names = module.functions
    if name is None:
        name = _only_kernel(names, arguments.file)
    elif not templated and name not in names:
        module = device.RawModule(code, options=options, headers=headers, name_expressions=[name])
        with contextlib.suppress(HearthError):  # a C++ function that is not a template also has such a name
            module.compile()
            return module.get_function(name)
        raise invalid_argument(
            f"{arguments.file!r} has no kernel {name!r}; it has {_list_names(names)}",
            'use one of these names; for an instance of a template use e.g. --kernel "scale<float>"',
        )
    return module.get_function(name)


def _only_kernel(names: Sequence[str], file: str) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise invalid_argument(
            f'{file!r} has no extern "C" __global__ function',
            'write extern "C" before __global__, or specify the kernel: --kernel NAME, --kernel "scale<float>"',
        )
    raise invalid_argument(
        f"{file!r} has {len(names)} kernels: {_list_names(names)}", f"specify one: --kernel {names[0]}"
    )


def _list_names(names: Sequence[str]) -> str:
    limit = 20
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "") or "none"


def launch(
    arguments: argparse.Namespace,
    node: Node,
    device: Device,
    kernel: Function,
    specs: Sequence[Spec],
    values: list[Any],
) -> RunReport:
    """Uploads the arrays, runs the kernel, downloads the results, and returns the report."""
    sizes: list[int] = []
    kernel_arguments: list[Any] = []
    for index, spec in enumerate(specs):
        if isinstance(spec, Array):
            if values[index] is None and isinstance(spec.source, Generated):
                kernel_arguments.append(device.zeros(spec.source.shape, spec.source.dtype))
            else:
                kernel_arguments.append(device.asarray(values[index], blocking=True))
                values[index] = None  # releases the memory, which is no longer needed
            sizes.append(kernel_arguments[-1].size)
        else:
            kernel_arguments.append(values[index])
    grid = arguments.grid or _grid_for(max(sizes, default=1), arguments.block)
    report = RunReport(
        file=arguments.file, kernel=kernel.name, grid=grid, block=arguments.block, shared_mem=arguments.shared_mem,
        mode=arguments.mode, iterations=arguments.iterations, node=node.name, daemon=node.describe().server_version,
        device=device.ordinal, device_name=device.properties.name, backend=device.properties.backend,
    )  # fmt: skip
    device.synchronize()  # waits for the uploads, so that they are not measured
    if not arguments.json:
        print(report.heading(), flush=True)
    profile = device.profile() if arguments.timed else None
    with profile or contextlib.nullcontext():
        kernel(
            grid, arguments.block, tuple(kernel_arguments), arguments.shared_mem, mode=arguments.mode,
            iterations=arguments.iterations, timeout=arguments.launch_timeout,
        )  # fmt: skip
    device.synchronize()
    if profile is not None:
        report.device_ns, report.wall_ns = profile.device_ns, profile.wall_ns
    report.results = [
        Result(number, kernel_arguments[number - 1].get(), spec.result)
        for number, spec in enumerate(specs, 1)
        if isinstance(spec, Array) and spec.direction != "in"
    ]
    return report


def _grid_for(elements: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns a grid with one thread for each element."""
    threads = block[0] * block[1] * block[2]
    return max(1, -(-elements // threads)), 1, 1
