"""Description of the environment of the measurements."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.bench import processes

_PACKAGES = ("grpcio", "protobuf", "numpy", "uvloop", "cuda-bindings", "hearth-gpu")


def describe(target: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the machine, devices, versions, commit and date."""
    devices = processes.run_worker("environment:devices", {"target": target}, env)
    cuda = devices[0]["backend"] == "cuda"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        "devices": devices,
        "nccl_variables": {name: value for name, value in env.items() if name.startswith("NCCL_")},
        "cuda": processes.run_worker("environment:cuda", {}, env) if cuda else None,
    }


def devices(target: str) -> list[dict[str, Any]]:
    """Runs in a worker: returns the devices of the daemon."""
    import hearth

    with hearth.connect(target, timeout=60) as node:
        found = [(device.ordinal, device.properties) for device in node.devices]
        return [
            {"ordinal": ordinal, "name": it.name, "backend": it.backend, "memory": it.total_memory}
            for ordinal, it in found
        ]


def cuda() -> dict[str, Any]:
    """Runs in a worker: returns the versions of the driver, CUDA, CuPy and NCCL."""
    import cupy
    from cupy.cuda import runtime

    versions: dict[str, Any] = {
        "cupy": cupy.__version__,
        "runtime": runtime.runtimeGetVersion(),
        "driver_api": runtime.driverGetVersion(),
    }
    try:
        from cupy.cuda import nccl

        versions["nccl"] = nccl.get_version()
    except Exception as error:
        versions["nccl"] = f"none: {error}"
    try:
        import pynvml

        pynvml.nvmlInit()
        driver = pynvml.nvmlSystemGetDriverVersion()
        versions["driver"] = driver.decode() if isinstance(driver, bytes) else driver
    except Exception as error:
        versions["driver"] = f"unknown: {error}"
    return versions


def machine_name(described: Mapping[str, Any]) -> str:
    """Returns a name for the results file that states the kind of machine, but does not identify it."""
    first = described["devices"][0]
    if first["backend"] == "cuda":
        return _slug(first["name"])
    return _slug(f"{platform.machine()}-{described['machine']['cores']}cores")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _processor() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1) if match else platform.processor()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    """Returns the commit, with "+" if the working tree has changes; "unknown" outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(processes.ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
