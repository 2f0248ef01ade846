"""Runs a command as systemd would run it for a unit, as far as that is possible without systemd: with the unit's system
call filter, address families, namespaces, capabilities, umask and limits.

python under_unit.py hearthd.service command...

Settings that require mounts or control groups are not applied: ProtectSystem and similar settings, PrivateTmp, devices.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
NAMESPACES = 0x7E020080
"""All CLONE_NEW* flags of clone(2)."""
_CAPBSET_DROP, _NO_NEW_PRIVS = 24, 38
_CAPABILITY_VERSION = 0x20080522


class _Compare(ctypes.Structure):
    """The struct scmp_arg_cmp of libseccomp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def settings(unit: Path) -> dict[str, list[str]]:
    """Returns all values of each key, in order."""
    values: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values.setdefault(key, []).append(value)
    return values


def expanded(word: str) -> set[str]:
    """Returns the system calls of a set (`@name`), or the named call."""
    if not word.startswith("@"):
        return {word}
    tool = shutil.which("systemd-analyze") or "systemd-analyze"
    listing = subprocess.run([tool, "syscall-filter", word], capture_output=True, text=True, check=True).stdout
    names = [line.strip() for line in listing.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return set().union(*map(expanded, names))


def allowed(filters: list[str]) -> set[str]:
    """Returns the system calls that an allow list of several lines permits."""
    calls = expanded("@default")
    for line in filters:
        named = set().union(*map(expanded, line.removeprefix("~").split()))
        calls = calls - named if line.startswith("~") else calls | named
    return calls


def confine(unit: dict[str, list[str]]) -> None:
    """Applies the unit's settings to this process and its future children."""
    os.umask(int(unit["UMask"][0], 8))
    for name, value in (("CORE", unit["LimitCORE"][0]), ("NOFILE", unit.get("LimitNOFILE", ["65536"])[0])):
        kind = getattr(resource, f"RLIMIT_{name}")
        hard_limit = resource.getrlimit(kind)[1]
        limit = int(value) if hard_limit == resource.RLIM_INFINITY else min(int(value), hard_limit)
        resource.setrlimit(kind, (limit, limit))
    calls = allowed(unit["SystemCallFilter"])
    libc = ctypes.CDLL(None, use_errno=True)
    if unit.get("CapabilityBoundingSet") == [""] and os.getuid() == 0:
        for capability in range(64):
            libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0)
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
        libc.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    _filter(calls, unit["RestrictAddressFamilies"][0].split())


def _filter(calls: set[str], families: list[str]) -> None:
    seccomp: Any = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(ctypes.c_uint32(ERRNO | errno.EPERM)))

    def rule(action: int, call: str, *compares: _Compare) -> None:
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # a negative number: the call does not exist on this architecture
            array = (_Compare * max(1, len(compares)))(*compares)
            done = seccomp.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(compares), array)
            assert done == 0, (call, os.strerror(-done))

    for call in calls - {"socket", "clone", "clone3", "unshare", "setns"}:
        rule(ALLOW, call)
    for family in families:
        rule(ALLOW, "socket", _Compare(0, EQUAL, getattr(socket, family), 0))
    rule(ALLOW, "clone", _Compare(0, MASKED_EQUAL, NAMESPACES, 0))
    rule(ERRNO | errno.ENOSYS, "clone3")  # seccomp cannot inspect its flags; the C library falls back to clone
    done = seccomp.seccomp_load(context)
    assert done == 0, os.strerror(-done)


if __name__ == "__main__":
    confine(settings(Path(sys.argv[1])))
    os.execvp(sys.argv[2], sys.argv[2:])
