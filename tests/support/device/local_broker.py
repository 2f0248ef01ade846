"""Stand-in for the broker of a device process: compiles in workers that the test's process starts itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hearthd.device.broker.worker_entry import WORKERS
from hearthd.device.compiler.cache import CompileCache, cache_directory
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.process.device_process import DeviceProcess
from hearthd.shared.device_spec import DeviceSpec


class LocalBroker(CachedImages):
    on_loss: Callable[..., None]

    def __init__(self, spec: DeviceSpec, server: Any) -> None:
        workers = CompileWorkers(WORKERS[spec.backend], CompileLimits(spec.compile_timeout, spec.compile_memory))
        workers.set_compiler(server.compiler)
        super().__init__(workers, CompileCache(cache_directory(spec.cache_dir), spec.cache_bytes))


def device_process(link: Any, spec: DeviceSpec, server: Any, descriptors: Any = None) -> DeviceProcess:
    """Returns a device process over a server that the test provides, with a local broker."""
    return DeviceProcess(link, spec, server, LocalBroker(spec, server), descriptors)  # type: ignore[arg-type]
