"""Runs a program on the CPU backend, each kernel in a process forked for it, so that a crash affects no other
kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from multiprocessing import shared_memory

import numpy as np

from hearth_proto.reasons import Refusal
from hearthd.device.cpu.module import CpuModule
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.cpu.differential.failures import Failure
from tests.support.cpu.differential.kernels import Kernel
from tests.support.cpu.differential.programs import Launch, Program
from tests.support.cpu.kernels import compile_source, pack

LIMIT_S = 60
"""Seconds after which the process of a kernel is killed because it hangs."""


def check(program: Program) -> list[Failure]:
    """Returns the program's kernels that are wrong on the CPU backend."""
    names = program.name_expressions()
    try:
        image = compile_source(find_toolchain(), program.source(), (), names, program.headers)
    except Refusal as refusal:
        return _one_by_one(program, refusal)
    return [failure for kernel in program.kernels for failure in _checked(program, kernel, image)]


def _one_by_one(program: Program, refusal: Refusal) -> list[Failure]:
    """Compiles each kernel in a separate source, to find the kernel that does not compile; returns the failures."""
    failures = []
    for kernel in program.kernels:
        names = program.name_expressions([kernel])
        try:
            image = compile_source(find_toolchain(), program.source([kernel]), (), names, kernel.headers)
        except Refusal as own:
            log = str(own.details.get("log", ""))[:3000]
            failures.append(Failure(kernel, program.seed, f"refused: {own.message}\n{log}"))
        else:
            failures += _checked(program, kernel, image)
    if not failures:
        failures.append(Failure(None, program.seed, f"only the whole source is refused: {refusal.message}"))
    return failures


def _checked(program: Program, kernel: Kernel, image: bytes) -> Iterator[Failure]:
    launches = program.launches_of(kernel)
    sizes = [launch.threads + len(launch.cells) for launch in launches]
    memory = shared_memory.SharedMemory(create=True, size=4 * sum(sizes))
    try:
        assert memory.buf is not None
        words = np.frombuffer(memory.buf, np.uint32, sum(sizes))
        results, at = [], 0
        for launch in launches:
            out, cells = (
                words[at : at + launch.threads],
                words[at + launch.threads : at + launch.threads + len(launch.cells)],
            )
            out[:], cells[:] = 0, launch.cells
            results.append((out, cells))
            at += launch.threads + len(launch.cells)
        ended = _forked(image, launches, results)
        found = "\n".join(
            f"{launch}\n{difference}"
            for launch, (out, cells) in zip(launches, results, strict=True)
            if (difference := launch.compare(out, cells))
        )
        if ended or found:
            yield Failure(kernel, program.seed, f"{ended}\n{found if not ended else ''}".strip())
        del words, results, out, cells
    finally:
        memory.close()
        memory.unlink()


def _forked(image: bytes, launches: list[Launch], results: list[tuple[np.ndarray, np.ndarray]]) -> str:
    """Runs the launches in a forked process. Returns a description of how the process failed; empty if it succeeded."""
    with tempfile.TemporaryFile() as said:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                signal.alarm(LIMIT_S)
                try:
                    for launch, (out, cells) in zip(launches, results, strict=True):
                        run(CpuModule(image, find_toolchain()), launch, out, cells)
                    status = 0
                except BaseException:
                    os.write(2, traceback.format_exc().encode())
            os._exit(status)
        _, code = os.waitpid(child, 0)
        said.seek(0)
        text = said.read().decode(errors="replace").strip()
    ended = os.waitstatus_to_exitcode(code)
    if ended == 0:
        return ""
    how = f"killed by {signal.Signals(-ended).name}" if ended < 0 else f"exit status {ended}"
    return f"{how}: {text[-1500:]}"


def run(module: CpuModule, launch: Launch, out: np.ndarray, cells: np.ndarray) -> None:
    """Runs a launch on the CPU backend, without a daemon."""
    further = [(argument.data, argument.align) for argument in launch.kernel.arguments]
    parameters = pack(launch.data, out, cells, np.uint32(launch.scalar), *further)
    function = module.function(launch.kernel.name)
    function.launch(launch.grid, launch.block, launch.shared, parameters, launch.kernel.cooperative)
