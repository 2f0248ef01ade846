"""The backend and devices of this node, and the specifications of their processes."""

from __future__ import annotations

import os
import sys

import structlog

from hearthd.confinement.support import support
from hearthd.front.config.loader import Config, ConfigError, check_exposure
from hearthd.front.gpu import nvml
from hearthd.shared import secret_file
from hearthd.shared.device_spec import Backend, Confinement, DeviceSpec

log = structlog.get_logger("hearthd.backends")


def choose(config: Config) -> tuple[Backend, list[int]]:
    """Returns the backend and the indices of the devices to serve.

    Raises `ConfigError` if the configured backend or devices do not exist here.
    """
    configured = config.devices.backend
    gpus, reason = (0, "") if configured == "cpu" else nvml.gpu_count()
    count = nvml.cuda_count(gpus, os.environ)
    if gpus and not count:
        reason = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')!r} hides every GPU"
    elif count and not nvml.cupy_installed():
        count = 0
        reason = "CuPy is not installed; install the extra cuda12 or cuda13: in a clone pip install '.[cuda12]'"
    backend: Backend
    if configured == "cpu" or (configured == "auto" and not count):
        backend, count = "cpu", config.devices.cpu_count
        if configured == "auto":
            log.info("backend", backend=backend, why=reason)
    elif count:
        backend = "cuda"
    else:
        raise ConfigError(
            f"devices.backend = 'cuda', but there is no usable GPU here: {reason}; "
            "use devices.backend = 'cpu' or 'auto'"
        )
    check_exposure(config, backend)
    if backend == "cpu":
        check_cpu_tenants(config)
    else:
        check_compiling_tenants(config)
    visible = config.devices.visible
    if isinstance(visible, str):
        return backend, list(range(count))
    missing = [index for index in visible if index >= count]
    if missing:
        raise ConfigError(f"devices.visible names {missing}; the {backend} backend has devices 0 to {count - 1} here")
    return backend, list(visible)


def check_cpu_tenants(config: Config) -> None:
    """Raises `ConfigError` if tenants cannot be separated on the CPU backend.

    Its kernels are native code, so that tenants are separated only as far as this Linux kernel can confine processes.
    """
    if not config.tenants or config.devices.cpu_tenants == "trusted":
        return
    names = ", ".join(repr(tenant.name) for tenant in config.tenants)
    trusted = 'or set devices.cpu_tenants = "trusted", which lets each tenant access the data of the other tenants'
    if config.devices.isolation == "shared":
        raise ConfigError(
            f"tenants {names} would share one process of the CPU backend, whose kernels read each other's memory: set "
            f'devices.isolation = "tenant", {trusted}'
        )
    lacking = support().lacking
    if lacking:
        raise ConfigError(
            f"tenants {names} cannot use the CPU backend here: its kernels are native code, and this kernel, or this "
            f"container, has no {lacking} to confine them; use a kernel that has (Linux 5.13 or later), {trusted}"
        )


def check_compiling_tenants(config: Config) -> None:
    """Raises `ConfigError` if compile workers cannot be confined.

    They read the tenants' sources, and run with the daemon's rights unless they are confined.
    """
    if config.tenants and config.compile.tenants == "confined" and not support().landlock:
        names = ", ".join(repr(tenant.name) for tenant in config.tenants)
        raise ConfigError(
            f"tenants {names} cannot compile here: this kernel, or this container, has no Landlock to confine the "
            'compilers; use a kernel that has (Linux 5.13 or later), or set compile.tenants = "trusted"'
        )


def _must_confine_compiles(config: Config, backend: Backend) -> bool:
    """Returns True if compile workers must be confined: a worker that cannot be confined is not used."""
    trusted = config.compile.tenants == "trusted" or (backend == "cpu" and config.devices.cpu_tenants == "trusted")
    return bool(config.tenants) and not trusted


def _confinement(config: Config, backend: Backend) -> Confinement:
    if backend == "cuda":
        return config.devices.gpu_confinement
    return "required" if config.tenants and config.devices.cpu_tenants == "confined" else "available"


def _cache_key(config: Config) -> str:
    """Returns the path of the file with the key of the compile cache, and creates the file if it is missing.

    Empty: the cache is not used.
    """
    path = config.cache_key
    try:
        if path:
            secret_file.ensure(path)
    except OSError as error:
        log.warning("compile_cache", off=f"its key cannot be read: {error}", key=path)
        return ""
    return path


def device_specs(config: Config, backend: Backend, devices: list[int]) -> list[DeviceSpec]:
    """Returns a specification for each device. Ordinals count from 0, whatever the indices are."""
    key = _cache_key(config)
    log_format = config.log.format
    if log_format == "auto":
        log_format = "console" if sys.stderr.isatty() else "json"
    return [
        DeviceSpec(
            ordinal=ordinal,
            backend=backend,
            index=index,
            cache_dir=config.cache_dir,
            cache_bytes=config.cache.max_bytes,
            cache_key=key,
            cache_divided=bool(config.tenants) and config.devices.isolation == "tenant" and not config.cache.shared,
            confinement=_confinement(config, backend),
            compile_timeout=config.compile.timeout,
            compile_memory=config.compile.memory,
            compile_workers=config.compile.workers,
            compile_confined=_must_confine_compiles(config, backend),
            memory_limit=config.devices.memory_limit,
            max_handles=config.limits.max_handles,
            max_streams=config.devices.max_streams,
            persisting_l2=config.devices.persisting_l2,
            linger=config.devices.linger,
            launch_timeout=config.launch.timeout,
            load_timeout=config.launch.load_timeout,
            collective_timeout=config.collectives.timeout,
            max_inline_bytes=config.limits.max_inline_bytes,
            chunk_bytes=config.limits.max_chunk_bytes,
            nvtx=config.profile.nvtx,
            cupti=config.profile.cupti,
            log_level=config.log.level,
            log_format=log_format,
        )
        for ordinal, index in enumerate(devices)
    ]
