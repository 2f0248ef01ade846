"""Which backend and devices this node has, and what their processes are told."""

from __future__ import annotations

import os
import sys

import structlog

from hearthd.config import Config, ConfigError, check_exposure
from hearthd.front import nvml
from hearthd.spec import Backend, DeviceSpec

log = structlog.get_logger("hearthd.backends")


def choose(config: Config) -> tuple[Backend, list[int]]:
    """The backend and the indices of its devices. Raises `ConfigError` where what is configured is not there."""
    wanted = config.devices.backend
    gpus, why = (0, "") if wanted == "cpu" else nvml.gpu_count()
    count = nvml.cuda_count(gpus, os.environ)
    if gpus and not count:
        why = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} hides every GPU"
    elif count and not nvml.cupy_installed():
        count, why = 0, "CuPy is not installed; install hearth-gpu[cuda12] or hearth-gpu[cuda13]"
    backend: Backend
    if wanted == "cpu" or (wanted == "auto" and not count):
        backend, count = "cpu", config.devices.cpu_count
        if wanted == "auto":
            log.info("backend", backend=backend, why=why)
    elif count:
        backend = "cuda"
    else:
        raise ConfigError(
            f"devices.backend = 'cuda', but there is no usable GPU here: {why}; use devices.backend = 'cpu' or 'auto'"
        )
    check_exposure(config, backend)
    visible = config.devices.visible
    if isinstance(visible, str):
        return backend, list(range(count))
    strangers = [index for index in visible if index >= count]
    if strangers:
        raise ConfigError(f"devices.visible names {strangers}; the {backend} backend has devices 0 to {count - 1} here")
    return backend, list(visible)


def device_specs(config: Config, backend: Backend, devices: list[int]) -> list[DeviceSpec]:
    """One specification a device; ordinals count from 0 whatever the indices are."""
    form = config.log.format
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    return [
        DeviceSpec(
            ordinal=ordinal,
            backend=backend,
            index=index,
            cache_dir=config.cache_dir,
            cache_bytes=config.cache.max_bytes,
            compile_timeout=config.compile.timeout,
            compile_memory=config.compile.memory,
            compile_workers=config.compile.workers,
            memory_limit=config.devices.memory_limit,
            max_streams=config.devices.max_streams,
            linger=config.devices.linger,
            launch_timeout=config.launch.timeout,
            load_timeout=config.launch.load_timeout,
            collective_timeout=config.collectives.timeout,
            max_inline_bytes=config.limits.max_inline_bytes,
            chunk_bytes=config.limits.max_chunk_bytes,
            nvtx=config.profile.nvtx,
            cupti=config.profile.cupti,
            log_level=config.log.level,
            log_format=form,
        )
        for ordinal, index in enumerate(devices)
    ]
