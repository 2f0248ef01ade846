"""Entry points of compile workers, one for each backend.

A worker imports its compiler itself, after it is set to end together with its device process. Covers which compiler a
backend has; not the work of a worker (`hearthd.device.compiler.worker_main`), nor its start
(`hearthd.device.compiler.worker_process`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hearthd.device.compiler import worker_main
from hearthd.device.compiler.worker_main import Main


def cpu_worker(link: int, lifeline: int) -> None:
    """Runs a compile worker of the CPU backend; see `worker_main.main`."""
    worker_main.main(link, lifeline, _cpu_compiler)


def cuda_worker(link: int, lifeline: int) -> None:
    """Runs a compile worker for CUDA devices; see `worker_main.main`."""
    worker_main.main(link, lifeline, _cuda_compiler)


def _cpu_compiler() -> type[Any]:
    from hearthd.device.cpu.compiler import CpuCompiler

    return CpuCompiler


def _cuda_compiler() -> type[Any]:
    from hearthd.device.cuda.compiler import CudaCompiler

    return CudaCompiler


WORKERS: Mapping[str, Main] = {"cpu": cpu_worker, "cuda": cuda_worker}
"""Entry point of a compile worker, by the name of the backend."""
