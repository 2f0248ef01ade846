"""Seccomp-BPF filters: assembled from rules on system calls and their arguments, and installed for this process.

A filter is a denylist for known calls. Calls that a rule names fail with the rule's error; calls with numbers above
`syscalls.LAST_KNOWN`, of another architecture or of x32 fail, too; every other call is allowed. Linux caches the result
for calls whose arguments no rule checks, so these cost nothing (seccomp(2), "constant action bitmap").
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hearthd.confinement import syscalls

_LD_ABS, _JEQ, _JGT, _JSET, _AND, _RET = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
"""Offsets of fields in `struct seccomp_data`."""

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_FLAG_TSYNC, _FLAG_SPEC_ALLOW = 1, 4
"""Flags: the filter applies to all threads; it does not enable the mitigations that old kernels combine with
filters."""

_INSTRUCTION = struct.Struct("=HBBI")


@dataclass(frozen=True)
class Argument:
    """The low 32 bits of one argument, combined with `mask`, and the values to compare with."""

    index: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF


@dataclass(frozen=True)
class Rule:
    """System call that fails with `error`: always if the rule has no arguments, otherwise depending on them.

    `only`: the call fails unless each of these arguments has one of its values. `never`: the call fails if any of these
    arguments has one of its values. `clear`: the call fails if the argument has any of these bits; `set`: the call
    fails if the argument has none of these bits.
    """

    name: str
    only: tuple[Argument, ...] = ()
    never: tuple[Argument, ...] = ()
    clear: tuple[tuple[int, int], ...] = ()
    set: tuple[tuple[int, int], ...] = ()
    error: int = errno.EPERM

    @property
    def has_conditions(self) -> bool:
        """True if the rule depends on arguments."""
        return bool(self.only or self.never or self.clear or self.set)


def assemble(rules: Sequence[Rule], machine: str = "") -> bytes:
    """Returns the program for `machine` (default: this one). Raises KeyError for an unknown architecture or call."""
    machine = machine or platform.machine()
    program = [
        _code(_LD_ABS, _ARCH),
        _code(_JEQ, syscalls.ARCHITECTURES[machine], 1, 0),
        _code(_RET, _ERRNO | errno.EPERM),
        _code(_LD_ABS, _NUMBER),
        _code(_JGT, syscalls.LAST_KNOWN, 0, 1),
        _code(_RET, _ERRNO | errno.ENOSYS),
    ]
    # Rules on arguments come first, because their calls are checked each time (the result is not cached).
    for rule in sorted(rules, key=lambda rule: not rule.has_conditions):
        number = syscalls.number(rule.name, machine)
        if number is None:
            continue
        body = _body(rule)
        program += [_code(_JEQ, number, 0, len(body)), *body]
    program.append(_code(_RET, _ALLOW))
    return b"".join(program)


def available() -> bool:
    """True if this kernel, on this architecture, accepts such filters."""
    if not syscalls.known():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    action = ctypes.c_uint32(_ERRNO)
    number = syscalls.SECCOMP[platform.machine()]
    if libc.syscall(ctypes.c_long(number), ctypes.c_uint(_GET_ACTION_AVAIL), 0, ctypes.byref(action)) == 0:
        return True
    # The system call may be blocked (SystemCallFilter of systemd) while prctl is not: the error EFAULT shows that prctl
    # supports filters.
    return libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, None, 0, 0) != 0 and ctypes.get_errno() == errno.EFAULT


def install(program: bytes) -> None:
    """Installs the filter permanently for this process and all processes that it starts; sets no-new-privs.

    Raises OSError.
    """

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(program, len(program))
    filter_program = Program(len(program) // _INSTRUCTION.size, ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise _last_error("no-new-privs")
    number = ctypes.c_long(syscalls.SECCOMP[platform.machine()])
    for flags in (_FLAG_TSYNC | _FLAG_SPEC_ALLOW, _FLAG_TSYNC):
        if (
            libc.syscall(number, ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(flags), ctypes.byref(filter_program))
            == 0
        ):
            return
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(filter_program), 0, 0):
        raise _last_error("a seccomp filter")


def _body(rule: Rule) -> list[bytes]:
    """Returns the instructions for one call, whose number has matched; each path through them ends with a return."""
    fails = _code(_RET, _ERRNO | rule.error)
    if not rule.has_conditions:
        return [fails]
    body: list[bytes] = []
    for argument in rule.only:
        loads = _load(argument)
        tests = [
            _code(_JEQ, value, len(argument.values) - index, 0) for index, value in enumerate(argument.values)
        ]  # jump past the failure
        body += [*loads, *tests, fails]
    for argument in rule.never:
        body += _load(argument)
        for value in argument.values:
            body += [_code(_JEQ, value, 0, 1), fails]
    for index, bits in rule.clear:
        body += [_code(_LD_ABS, _ARGUMENTS + 8 * index), _code(_JSET, bits, 0, 1), fails]
    for index, bits in rule.set:
        body += [_code(_LD_ABS, _ARGUMENTS + 8 * index), _code(_JSET, bits, 1, 0), fails]
    return [*body, _code(_RET, _ALLOW)]


def _load(argument: Argument) -> list[bytes]:
    load = [_code(_LD_ABS, _ARGUMENTS + 8 * argument.index)]  # little-endian: the low half comes first
    return load if argument.mask == 0xFFFFFFFF else [*load, _code(_AND, argument.mask)]


def _code(operation: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return _INSTRUCTION.pack(operation, if_true, if_false, value)


def _last_error(subject: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{subject} cannot be set: {os.strerror(number)}")
