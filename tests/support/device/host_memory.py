"""Host memory of which a limited amount can be "locked", without a GPU."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import HostInfo
from hearthd.device.cpu.server import CpuServer
from hearthd.device.cpu.streams import CpuStream
from hearthd.device.resources.host_pool import HostPool, PinnedBuffer
from hearthd.shared.device_spec import DeviceSpec


class Host:
    """Locks memory until `left` bytes are used up, and records the callers."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked: list[tuple[int, str]] = []
        self._memory: list[Any] = []

    def lock(self, size: int) -> int:
        self.asked.append((size, threading.current_thread().name))
        if size > self.left:
            raise MemoryError(f"cannot lock {size} bytes")
        self.left -= size
        memory = (ctypes.c_ubyte * size)()
        self._memory.append(memory)
        return ctypes.addressof(memory)


class LockingServer(CpuServer):
    """A CPU device whose host memory for copies must be locked, as on a GPU. The driver may refuse copies."""

    def __init__(self, spec: DeviceSpec, host: Host, slab: int = 1 << 20) -> None:
        super().__init__(spec)
        self.host = host
        self.pool = HostPool(spec.staging_bytes, lock=host.lock, slab=slab, on_grown=self._progress)
        self.direct = 0
        self.events = 0
        self.refuse = 0
        """Number of copies that the driver still refuses."""

    def stream(self, number: int) -> CpuStream:
        return self.streams[number]

    def allocate_host(self, size: int) -> Any:
        return self.pool.allocate(size)

    def host_grown(self) -> bool:
        return self.pool.grown()

    def host_refusal(self, size: int) -> Refusal | None:
        return self.pool.refusal(size)

    def host_info(self) -> HostInfo:
        return self.pool.info()

    def free_host(self, buffer: Any) -> None:
        assert isinstance(buffer, PinnedBuffer)
        self.pool.free(buffer)

    def record(self, stream: CpuStream, *, timing: bool = False) -> Any:
        self.events += 1
        return super().record(stream, timing=timing)

    def _drive(self) -> None:
        if self.refuse:
            self.refuse -= 1
            raise Refusal(Reason.INTERNAL, "the driver refuses this copy", fix="none")

    def upload(self, *args: Any) -> None:
        self._drive()
        super().upload(*args)

    def download(self, *args: Any) -> None:
        self._drive()
        super().download(*args)

    def write_now(self, *args: Any) -> None:
        self.direct += 1
        super().write_now(*args)

    def read_now(self, *args: Any) -> None:
        self.direct += 1
        super().read_now(*args)
