"""Stand-in for the broker of a device process: compiles in workers that the test's process starts itself."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from hearth_proto.descriptors import pair
from hearthd.device.broker.worker_entry import WORKERS
from hearthd.device.compiler.cache import CompileCache, cache_directory
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.process.device_process import DeviceProcess
from hearthd.shared.device_spec import DeviceSpec


class LocalBroker(CachedImages):
    on_loss: Callable[..., None]
    unused_files: socket.socket

    def __init__(self, spec: DeviceSpec, server: Any) -> None:
        workers = CompileWorkers(WORKERS[spec.backend], CompileLimits(spec.compile_timeout, spec.compile_memory))
        workers.set_compiler(server.compiler)
        super().__init__(workers, CompileCache(cache_directory(spec.cache_dir), spec.cache_bytes))

    def serve(self, recipe: Mapping[str, Any]) -> None:
        """Called by a device process with a GPU; the workers of this broker have their compiler already."""


def device_process(link: Any, spec: DeviceSpec, server: Any, descriptors: Any = None) -> DeviceProcess:
    """Returns a device process over a server that the test provides, with a local broker.

    Without `descriptors` no file is passed to the process.
    """
    broker = LocalBroker(spec, server)
    if descriptors is None:
        broker.unused_files, descriptors = pair()
    return DeviceProcess(link, spec, server, broker, descriptors)  # type: ignore[arg-type]
