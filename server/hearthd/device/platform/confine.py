"""Confinement of a device process, in force from before its first additional thread to its end.

On the CPU backend, kernels are native code in this process. The confined process can use its sockets and its memory,
read the libraries of the system and of Python, and start threads; for anything else it uses its broker
(`device.broker`). On CUDA, the operator chooses the confinement (`devices.gpu_confinement`).
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Collection, Sequence
from pathlib import Path

import hearth_proto
import hearthd
from hearth_proto.reasons import Reason, Refusal
from hearthd.confinement import attributes, profiles, seccomp
from hearthd.confinement.support import support
from hearthd.device.platform import sandbox
from hearthd.shared.device_spec import DeviceSpec

_SYSTEM_READS = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/ssl/openssl.cnf", "/usr/share/zoneinfo", "/dev/urandom", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/sys/kernel/random/boot_id", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu",
)  # fmt: skip
"""Paths of shared libraries, and of files that the C library and Python read about the machine."""


def confine(spec: DeviceSpec, descriptors: Collection[int]) -> str:
    """Confines this process permanently; it must have a single thread.

    Keeps `descriptors` and standard input and output open. Returns the measures in force, for example "landlock 7,
    seccomp"; empty if there are none.

    Raises Refusal(DEVICE_UNAVAILABLE) if the kernel lacks what the specification requires.
    """
    if spec.backend == "cuda":
        return _confine_gpu(spec)
    features = support()
    if spec.confinement == "required" and features.lacking:
        raise _refused(f"this kernel, or this container, has no {features.lacking}")
    attributes.keep_descriptors(descriptors)
    attributes.close_to_others()
    attributes.no_new_privileges()
    try:
        files = sandbox.confine(_readable_paths(), ("/dev/null",), execute=False)
        attributes.drop_capabilities()
        calls = ""
        if features.seccomp:
            seccomp.install(seccomp.assemble(profiles.cpu(os.getpid())))
            calls = "seccomp"
    except OSError as error:
        raise _refused(str(error)) from None
    if spec.confinement == "required" and not (files and calls):
        raise _refused("Landlock did not take effect")
    return ", ".join(measure for measure in (files, calls) if measure)


def _confine_gpu(spec: DeviceSpec) -> str:
    """Confines a GPU process, without Landlock.

    Under Landlock, CUDA 13 opens no device (error 304, operating system call failed; measured on an H100).
    """
    attributes.no_new_privileges()
    if spec.confinement != "process":
        attributes.leave_no_core()
        attributes.open_to_others()
        return ""
    attributes.close_to_others()
    if not seccomp.available():
        return ""
    seccomp.install(seccomp.assemble(profiles.gpu()))
    return "seccomp"


def _readable_paths() -> Sequence[str]:
    """Returns the readable paths: the system's, and Python's directories from which modules are imported."""
    python = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    packages = [str(Path(path)) for package in (hearthd, hearth_proto) for path in package.__path__]
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    library = sysconfig.get_config_var("LIBDIR")
    process_files = "/proc/self"
    return [*_SYSTEM_READS, *python, *packages, *installed, *([library] if library else []), process_files]


def _refused(reason: str) -> Refusal:
    return Refusal(
        Reason.DEVICE_UNAVAILABLE,
        f"A device process of the CPU backend cannot be confined, and tenants depend on it: {reason}.",
        fix='run a kernel with Landlock and seccomp, or set devices.cpu_tenants = "trusted"',
    )
