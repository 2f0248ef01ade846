"""Device spec: the parameters that the front passes to a device process.

Shared code: the front imports nothing of `device/`, and `device/` nothing of `front/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Backend = Literal["cuda", "cpu"]

Confinement = Literal["off", "available", "required", "process"]
"""Level of confinement. CPU backend: as far as the kernel supports it ("available"), or complete ("required"). CUDA:
none ("off"), or seccomp and process attributes ("process")."""

CHANGEABLE = ("log_level", "log_format", "launch_timeout", "load_timeout")
"""Fields of a `DeviceSpec` that the front may change while the process runs (`Kind.CHANGE`)."""


@dataclass(frozen=True)
class DeviceSpec:
    """Parameters of one device process. Sizes in bytes, times in seconds."""

    ordinal: int
    """The device's number on the node, as clients see it."""
    backend: Backend
    index: int
    """The CUDA device index; for the CPU backend, the number of the virtual device."""
    generation: int = 1
    """Number of the process among those that have served this device; buffers of an older generation are lost."""
    cache_dir: str = ""
    """Directory of compiled modules; empty: modules are not cached."""
    cache_bytes: int = 1 << 30
    cache_key: str = ""
    """File with the key that authenticates the cache's entries; empty: there is no key."""
    cache_divided: bool = False
    """True if each tenant has separate compiled modules."""
    confinement: Confinement = "available"
    """Confinement of the process before it serves any session."""
    memory_limit: int = 0
    """Limit in bytes of device memory for all sessions together; 0: the device's memory (CPU: a share of the host's
    memory)."""
    memory_granted: int | None = None
    """Bytes of the limit that the process may hold from its start until the front grants a different amount; None: all
    of it."""
    scrub: bool = False
    """True if memory is cleared before it is allocated, because there are tenants."""
    launch_timeout: float = 0.0
    """Seconds after which a running kernel ends the device process; 0: no limit."""
    load_timeout: float = 60.0
    """Seconds for which a module may wait to be loaded until kernels end, if the backend makes it wait; 0: no limit."""
    collective_timeout: float = 30.0
    max_handles: int = 131_072
    """Largest number of handles of one session; 0: no limit."""
    max_streams: int = 128
    persisting_l2: int = 0
    """Part of a GPU's L2 cache for persisting accesses, in bytes."""
    linger: float = 500e-6
    """Seconds for which the process polls for the next request after doing work before it sleeps, if there are enough
    cores; 0: no polling."""
    staging_bytes: int = 256 << 20
    """Limit in bytes of the host memory for running copies."""
    max_inline_bytes: int = 1 << 20
    chunk_bytes: int = 1 << 20
    compile_timeout: float = 120.0
    """Wall-clock limit of one compile, in seconds."""
    compile_memory: int = 4 << 30
    """Address space that one compile may take, in bytes."""
    compile_workers: int = 2
    compile_confined: bool = False
    """True if a compile worker that Landlock could not confine must not compile, because there are tenants."""
    cpu_threads: int = 0
    """Threads of one virtual CPU device; 0: all cores."""
    nvtx: bool = False
    """True if commands are enclosed in NVTX ranges, for Nsight Systems."""
    cupti: bool = False
    """True if traces of sessions contain CUPTI's kernel activity."""
    log_level: str = "info"
    log_format: Literal["json", "console"] = "console"
