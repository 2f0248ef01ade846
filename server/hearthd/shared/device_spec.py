"""Device spec: the parameters of a device process, from the front.

Neutral ground: the front imports nothing of `device/`, and `device/` nothing of `front/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Backend = Literal["cuda", "cpu"]

Confinement = Literal["off", "available", "required", "process"]
"""Level of confinement. CPU backend: as far as the kernel can ("available"), or wholly ("required"). CUDA: none
("off"), or seccomp and attributes ("process")."""


@dataclass(frozen=True)
class DeviceSpec:
    """Parameters of one device process. Sizes in bytes, times in seconds."""

    ordinal: int
    """The device's number on the node, as clients see it."""
    backend: Backend
    index: int
    """The CUDA device index; the number of the virtual device on the CPU backend."""
    generation: int = 1
    """Counts the processes that have served this device; buffers of an older one are gone."""
    cache_dir: str = ""
    """Directory of compiled modules; empty: none."""
    cache_bytes: int = 1 << 30
    cache_key: str = ""
    """File with the key that authenticates what is in there; empty: there is none."""
    cache_divided: bool = False
    """Each tenant has separate compiled modules."""
    confinement: Confinement = "available"
    """Confinement of the process before it serves any session."""
    memory_limit: int = 0
    """Limit of all sessions together; 0: the device's memory (CPU: a share of the host's memory)."""
    memory_granted: int | None = None
    """Part of the limit that the process may hold from its start, until the front grants another; None: all of it."""
    scrub: bool = False
    """Memory is cleared before it is handed out, as there are tenants."""
    launch_timeout: float = 0.0
    """A kernel that runs longer ends the device process; 0: none."""
    load_timeout: float = 60.0
    """Time limit for which a module may wait to be loaded until kernels end, where the backend has it wait; 0: none."""
    collective_timeout: float = 30.0
    max_handles: int = 131_072
    """The most handles of one session; 0: no limit."""
    max_streams: int = 128
    linger: float = 500e-6
    """Time for which the process polls for the next request without a sleep, after it has done work, where there are
    cores enough; 0: none."""
    staging_bytes: int = 256 << 20
    """Limit of the host memory for copies under way."""
    max_inline_bytes: int = 1 << 20
    chunk_bytes: int = 1 << 20
    compile_timeout: float = 120.0
    """Wall-clock seconds of one compile."""
    compile_memory: int = 4 << 30
    """Address space that one compile may take, in bytes."""
    compile_workers: int = 2
    compile_confined: bool = False
    """A compile worker that Landlock does not confine compiles nothing: there are tenants."""
    cpu_threads: int = 0
    """Threads of one virtual CPU device; 0: all cores."""
    nvtx: bool = False
    """NVTX ranges around commands, for Nsight Systems."""
    cupti: bool = False
    """CUPTI's kernel activity in the traces of sessions."""
    log_level: str = "info"
    log_format: Literal["json", "console"] = "console"
