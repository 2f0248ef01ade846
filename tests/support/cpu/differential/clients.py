"""Runs a program through a client and a daemon, on either backend."""

from __future__ import annotations

import numpy as np

import hearth
from tests.support.cpu.differential.failures import Failure
from tests.support.cpu.differential.nvrtc import GENERIC_LAMBDAS
from tests.support.cpu.differential.programs import Launch, Program


def check(device: hearth.Device, program: Program) -> list[Failure]:
    """Returns the program's kernels that are wrong on a device. Stops at the first kernel that raises, because the
    device process may be lost."""
    try:
        module = compiled(device, program)
    except hearth.HearthError as error:
        return [Failure(None, program.seed, f"the source is refused: {error}")]
    failures: list[Failure] = []
    for kernel in program.kernels:
        function, found = module.get_function(kernel.name), []
        for launch in program.launches_of(kernel):
            try:
                difference = launch.compare(*run(device, function, launch))
            except hearth.HearthError as error:
                failures.append(Failure(kernel, program.seed, f"{launch}\n{error}"))
                return failures
            if difference:
                found.append(f"{launch}\n{difference}")
        if found:
            failures.append(Failure(kernel, program.seed, "\n".join(found)))
    return failures


def compiled(device: hearth.Device, program: Program) -> hearth.RawModule:
    """Returns the program's compiled module; a compiler of CUDA 12 gets an additional option."""

    def module(*options: str) -> hearth.RawModule:
        names = program.name_expressions()
        made = device.RawModule(code=program.source(), options=options, name_expressions=names, headers=program.headers)
        made.compile()
        return made

    try:
        return module()
    except hearth.CompileError as error:
        if "execution space annotations" not in str(error):
            raise
        return module(GENERIC_LAMBDAS)


def run(device: hearth.Device, function: hearth.Function, launch: Launch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the results of the threads, and the cells, after a launch on the device."""
    data, cells = device.asarray(launch.data), device.asarray(launch.cells)
    out = device.zeros(launch.threads, np.uint32)
    further = [hearth.Struct(argument.data, align=argument.align) for argument in launch.kernel.arguments]
    function(
        launch.grid,
        launch.block,
        (data, out, cells, np.uint32(launch.scalar), *further),
        launch.shared,
        cooperative=launch.kernel.cooperative,
    )
    return out.get(), cells.get()
