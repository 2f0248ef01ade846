"""Loading of compiled modules, and launches of their kernels, which run on the threads of streams."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image
from hearthd.device.backend.graph_nodes import Dim, LaunchAttributes
from hearthd.device.backend.resources import Function, Module
from hearthd.device.compiler import image_headers
from hearthd.device.cpu import occupancy, racecheck
from hearthd.device.cpu.crash_recorder import CrashRecorder
from hearthd.device.cpu.libraries import LibraryMaker
from hearthd.device.cpu.module import CpuFunction, CpuModule
from hearthd.device.cpu.streams import CpuStream

_STDOUT = 1
_log = logging.getLogger("hearthd.racecheck")
_OWN_SYMBOL = b"\0hearth_module\0"
"""Symbol that every image made by the CPU backend's compiler has."""


class CpuLauncher:
    """Loads modules and launches their functions on streams."""

    def __init__(self, maker: LibraryMaker, multiprocessors: int) -> None:
        self._maker = maker
        self._multiprocessors = multiprocessors
        self.crashes = CrashRecorder()
        self.runtime: ctypes.CDLL | None = None
        """Library that launches kernels; None until a module is loaded."""

    def note_session(self, stream: CpuStream) -> None:
        """Attributes the next work of the stream to the session of its last launch."""
        launched = stream.launched
        if launched and launched[-1][2] != stream.session:
            session = stream.session = launched[-1][2]
            stream.submit(lambda: self.crashes.set_session(session))

    def load(self, image: Image) -> Module:
        """Loads an image that this backend compiled. Raises Refusal(UNSUPPORTED) for any other code."""
        if not image.code.startswith(image_headers.ELF_MAGIC) or _OWN_SYMBOL not in image.code:
            raise _foreign_code(image.code)
        module = CpuModule(image.code, self._maker)
        self.runtime = module.runtime
        self.crashes.set_runtime(module.runtime)
        return module

    def launch(
        self,
        function: Function,
        grid: Dim,
        block: Dim,
        shared_mem: int,
        stream: CpuStream,
        params: bytes | bytearray,
        attributes: LaunchAttributes | None = None,
    ) -> None:
        """Checks the launch on the calling thread, and submits it with a copy of `params` to the stream's thread.

        Raises Refusal(LAUNCH_INVALID), Refusal(RESIDENCY_EXCEEDED), Refusal(UNSUPPORTED) for a launch with clusters.
        """
        assert isinstance(function, CpuFunction)
        run = _reporting_races(function, stream) if function.checks_races else function.launch
        # checked here, because on the stream's thread an error would count as a device fault
        function.check(grid, block, shared_mem, params)
        if shared_mem and not self.blocks_per_multiprocessor(function, block[0] * block[1] * block[2], shared_mem):
            raise Refusal(
                Reason.LAUNCH_INVALID,
                f"launch of {function.name}: {shared_mem} bytes of dynamic shared memory are more than a block has",
                fix="request less",
                details={"kernel": function.name, "shared_mem": shared_mem},
            )
        self.note_session(stream)
        # a copy, because the buffer may belong to another launch by the time the stream runs this one
        block_of_parameters = bytes(params)
        if attributes is None:
            stream.submit(lambda: run(grid, block, shared_mem, block_of_parameters))
            return
        if attributes.cluster is not None:
            raise no_clusters(function.name)
        cooperative = attributes.cooperative
        if cooperative:
            self._check_resident(function, grid, block, shared_mem)
        stream.submit(lambda: run(grid, block, shared_mem, block_of_parameters, cooperative))

    def blocks_per_multiprocessor(self, function: Function, threads: int, shared_mem: int) -> int:
        attributes = function.attributes
        return occupancy.blocks_per_multiprocessor(
            threads, attributes.max_threads_per_block, attributes.static_shared_bytes + shared_mem
        )

    def suggested_block(self, function: Function, shared_mem: int) -> int:
        attributes = function.attributes
        return occupancy.suggested_block(attributes.max_threads_per_block, attributes.static_shared_bytes + shared_mem)

    def _check_resident(self, function: Function, grid: Dim, block: Dim, shared_mem: int) -> None:
        """Raises Refusal(RESIDENCY_EXCEEDED) for a grid that cannot be resident as a whole.

        Like CUDA's driver (cudaErrorCooperativeLaunchTooLarge), does so regardless of earlier checks.
        """
        blocks = grid[0] * grid[1] * grid[2]
        per_multiprocessor = self.blocks_per_multiprocessor(function, block[0] * block[1] * block[2], shared_mem)
        limit = per_multiprocessor * self._multiprocessors
        if blocks > limit:
            raise Refusal(
                Reason.RESIDENCY_EXCEEDED,
                f"cooperative launch of {function.name}: its grid has {blocks} blocks; {limit} fit at a time "
                f"({per_multiprocessor} on each of {self._multiprocessors} multiprocessors)",
                fix="launch fewer or smaller blocks, and let each do more",
                details={"kernel": function.name, "blocks": blocks, "allowed": limit},
            )


def _reporting_races(function: CpuFunction, stream: CpuStream) -> Callable[..., object]:
    """Returns a launch function for a kernel that is checked for races.

    Races are written to standard output, like output of the kernel, and logged.
    """

    def run(*arguments: Any) -> None:
        races = stream.races = function.launch(*arguments)
        for line in racecheck.text(races).splitlines(keepends=True):
            os.write(_STDOUT, line.encode())  # short enough for an atomic write to a pipe
            _log.warning(line.rstrip())

    return run


def no_clusters(kernel: str) -> Refusal:
    """Returns the refusal (UNSUPPORTED) of a launch with thread block clusters."""
    return Refusal(
        Reason.UNSUPPORTED,
        f"launch of {kernel} with a cluster: the CPU backend has no thread block clusters",
        fix="leave cluster out, or use a device whose properties.features names clusters",
        details={"feature": "clusters"},
    )


def _foreign_code(code: bytes) -> Refusal:
    """Returns the refusal of code that the CPU backend has not compiled; it names the kind of the code."""
    kind = image_headers.describe(code)
    return Refusal(
        Reason.UNSUPPORTED,
        f"the code is {kind}; the CPU backend runs CUDA C++ source only",
        fix="send the source, or use a node with a GPU",
        details={"feature": kind},
    )
