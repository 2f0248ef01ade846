"""Sandbox of a process that works for other users.

Landlock restricts file access; resource limits bound time, memory and file sizes.

Landlock (Linux 5.13; https://docs.kernel.org/userspace-api/landlock.html) needs no privilege and applies to the process
and its descendants. If the kernel or a container does not offer it, `confine` reports that and changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import stat
import time
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System call numbers, the same on every architecture (asm-generic/unistd.h)."""

_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# linux/landlock.h: LANDLOCK_ACCESS_FS_*
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_TRUNCATE = 1 << 14
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""Number of file access rights in each version before 5; from version 5 on, 16."""
_NET_VERSION, _SCOPE_VERSION = 4, 6
_NET_RIGHTS = 0b11
"""Rights to bind and to connect TCP sockets."""
_SCOPES = 0b11
"""Scopes: abstract Unix sockets of, and signals to, processes outside the sandbox."""

_REAP_S = 1.0
"""Time limit, in seconds, for the remaining processes of a group to end."""

_READ = _READ_FILE | _READ_DIR | _EXECUTE
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """Returns the version of the kernel's Landlock; 0 if it is missing or disabled."""
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)))


def confine(read: Iterable[str], write: Iterable[str], *, execute: bool = True) -> str:
    """Restricts the file access of this thread and of the processes that it starts.

    Files can be read only beneath `read` and `write`, and changed only beneath `write`. TCP, abstract sockets, and
    signals to other processes are blocked as far as the kernel supports that.

    Paths that do not exist are ignored. `execute`: programs beneath `read` may be started. Returns the restriction in
    force, for example "landlock 7"; empty if there is none.
    """
    version = landlock_version()
    if not version:
        return ""
    libc = _libc()
    rights = (1 << _FILE_RIGHTS.get(version, 16)) - 1
    attributes = _RulesetAttributes(
        rights, _NET_RIGHTS if version >= _NET_VERSION else 0, _SCOPES if version >= _SCOPE_VERSION else 0
    )
    size = 24 if version >= _SCOPE_VERSION else 16 if version >= _NET_VERSION else 8
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    if ruleset < 0:
        return ""
    try:
        write_rights = rights & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK)
        read_rights = (_READ if execute else _READ & ~_EXECUTE) & rights
        for paths, allowed in ((read, read_rights), (write, write_rights)):
            for path in paths:
                _allow(libc, ruleset, path, allowed)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.syscall(_RESTRICT_SELF, ruleset, 0):
            return ""
    finally:
        os.close(ruleset)
    return f"landlock {version}"


def adopt_orphans() -> None:
    """Makes orphaned descendants of this process its children, so that it can wait for them.

    Otherwise an ancestor or an init process would adopt them, and a container may lack the latter.
    """
    _libc().prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_group(group: int) -> None:
    """Waits, at most 1 s, for processes of a group that a child of this process has led and left behind.

    Has an effect only if this process adopts orphans. The driver of the ziglang package leaves some.
    """
    deadline = time.monotonic() + _REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(0.001)


def limit(*, file_bytes: int, files: int) -> None:
    """Sets permanent limits: the size of a file, in bytes, and the number of open files; disables core files."""
    limits = ((resource.RLIMIT_FSIZE, file_bytes), (resource.RLIMIT_NOFILE, files), (resource.RLIMIT_CORE, 0))
    for limit_id, value in limits:
        hard = resource.getrlimit(limit_id)[1]
        capped = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit_id, (capped, capped))


def allot(*, memory: int, seconds: float) -> None:
    """Sets limits of memory and processor time for the next piece of work.

    The limits are `memory` bytes of address space and `seconds` of processor time, beyond the present use of the
    process.

    Only the soft limits change, so that they can be set again later. Processes that are started meanwhile inherit them.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    _set_soft_limit(resource.RLIMIT_AS, address_space() + memory)
    _set_soft_limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime + seconds) + 2)


def largest_resident() -> int:
    """Returns the largest amount of physical memory that the process has used, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def address_space() -> int:
    """Returns the size of the address space that this process has mapped, in bytes (proc(5), statm)."""
    return int(os.pread(_statm(), 256, 0).split()[0]) * os.sysconf("SC_PAGE_SIZE")


@functools.cache
def _statm() -> int:
    """Returns a descriptor of /proc/self/statm. Opened once, before the process is confined."""
    return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)


def _set_soft_limit(limit_id: int, value: int) -> None:
    hard = resource.getrlimit(limit_id)[1]
    resource.setrlimit(limit_id, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            allowed &= _ON_FILES
        rule = _PathBeneath(allowed, descriptor)
        libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc
