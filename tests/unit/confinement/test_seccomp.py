"""Filters as the kernel runs them: each verdict is computed from the program's bytes, for every architecture."""

from __future__ import annotations

import errno
import struct

import pytest

from hearthd.confinement import profiles, seccomp, syscalls

PID = 4217
ALLOW = 0
OTHER_ARCHITECTURE = 0x40000003  # i386


def verdict(program: bytes, machine: str, number: int, *arguments: int, architecture: int = 0) -> int:
    """Returns the errno with which a call fails; 0: the call is allowed."""
    architecture = architecture or syscalls.ARCHITECTURES[machine]
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(value & (1 << 64) - 1 for value in values))
    code = list(struct.iter_unpack("=HBBI", program))
    at, register = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        match operation:
            case 0x20:
                (register,) = struct.unpack_from("<I", data, operand)
            case 0x54:
                register &= operand
            case 0x15:
                at += if_true if register == operand else if_false
            case 0x25:
                at += if_true if register > operand else if_false
            case 0x45:
                at += if_true if register & operand else if_false
            case 0x06:
                return ALLOW if operand == 0x7FFF0000 else operand & 0xFFFF
            case _:
                raise AssertionError(operation)


@pytest.fixture(params=syscalls.ARCHITECTURES)
def machine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def denied(machine: str, name: str, *arguments: int) -> int:
    number = syscalls.number(name, machine)
    assert number is not None
    return verdict(seccomp.assemble(profiles.cpu(PID), machine), machine, number, *arguments)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("kill", [(PID, 9)], [(1, 9), (0, 9), (-1, 9), (PID + 1, 0)]),
        ("tgkill", [(PID, PID + 3, 6)], [(PID + 1, PID + 1, 6)]),
        ("clone", [(0x3D0F00,)], [(17,), (0,), (0x4011,)]),
        ("socketpair", [(1, 1, 0), (1, 0x80801, 0)], [(1, 2, 0), (2, 1, 0), (1, 5, 0), (16, 1, 0)]),
        ("sendto", [(5, 0, 1, 0x4000, 0, 0)], [(5, 0, 1, 0x20000000, 1, 16), (5, 0, 1, 0x20004000, 1, 16)]),
        ("fcntl", [(3, 3), (3, 1030)], [(3, 8, 1), (3, 15, 1)]),
        ("ioctl", [(0, 0x5401)], [(0, 0x5412), (0, 0x541C), (3, 0x8901), (3, 0x100005412)]),
        ("prctl", [(15, 0), (29, 1)], [(1, 0), (4, 1), (0x59616D61, 1)]),
        ("prlimit64", [(0, 7), (PID, 7)], [(1, 7)]),
        ("setpriority", [(0, 0, 5)], [(0, 1, 5), (1, 0, 5)]),
    ],
)  # fmt: skip
def test_calls_are_judged_by_their_arguments(
    machine: str, name: str, allowed: list[tuple[int, ...]], refused: list[tuple[int, ...]]
) -> None:
    assert [denied(machine, name, *arguments) for arguments in allowed] == [ALLOW] * len(allowed)
    assert [denied(machine, name, *arguments) for arguments in refused] == [errno.EPERM] * len(refused)


def test_other_architectures_and_later_calls_fail(machine: str) -> None:
    program = seccomp.assemble(profiles.cpu(PID), machine)
    assert verdict(program, machine, 0) == ALLOW
    assert verdict(program, machine, 0, architecture=OTHER_ARCHITECTURE) == errno.EPERM
    assert verdict(program, machine, syscalls.LAST_KNOWN + 1) == errno.ENOSYS
    assert verdict(program, machine, 0x40000000) == errno.ENOSYS  # x32
    assert denied(machine, "clone3") == errno.ENOSYS


def test_numbers_are_distinct_and_within_the_filter() -> None:
    for column, machine in enumerate(syscalls.ARCHITECTURES):
        numbers = [pair[column] for pair in syscalls._NUMBERS.values() if pair[column] is not None]
        assert len(set(numbers)) == len(numbers), machine
        assert all(number is not None and number <= syscalls.LAST_KNOWN for number in numbers)


def test_rules_name_each_call_once_and_fit_a_program(machine: str) -> None:
    for rules in (profiles.cpu(PID), profiles.gpu()):
        names = [rule.name for rule in rules]
        assert len(set(names)) == len(names)
        assert len(seccomp.assemble(rules, machine)) // 8 < 4096  # BPF_MAXINSNS


def test_gpu_rules_allow_the_calls_that_cuda_needs(machine: str) -> None:
    program = seccomp.assemble(profiles.gpu(), machine)
    for name in ("ioctl", "socket", "execve", "clone3", "move_pages", "perf_event_open", "pidfd_getfd"):
        number = syscalls.number(name, machine)
        assert number is not None and verdict(program, machine, number) == ALLOW, name
    for name in ("ptrace", "process_vm_readv", "bpf", "mount", "kexec_load", "userfaultfd"):
        number = syscalls.number(name, machine)
        assert number is not None and verdict(program, machine, number) == errno.EPERM, name
