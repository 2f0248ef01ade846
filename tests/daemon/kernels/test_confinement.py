"""Kernels of the CPU backend that try to escape from their process: each attempt fails with an errno."""

from __future__ import annotations

import errno
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearthd.confinement import syscalls
from hearthd.confinement.support import support
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, hearthd, on_cpu, toml, wait_until
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.tenants import tenants

pytestmark = [
    on_cpu,
    pytest.mark.skipif(not syscalls.known(), reason="system call numbers of this architecture are not known"),
]
confined = pytest.mark.skipif(bool(support().lacking), reason=f"this kernel has no {support().lacking}")

SOURCE = r"""
extern "C" long syscall(long number, ...);
extern "C" int* __errno_location();

// result[0]: the result of the call, or minus its errno. `memory` is for paths, structures and data that is read.
extern "C" __global__ void call(long long* result, char* memory, long long number, long long a, long long b,
                                long long c, long long d, long long e, int pointers) {
    long long arguments[5] = {a, b, c, d, e};
    for (int i = 0; i < 5; ++i)
        if (pointers >> i & 1) arguments[i] += (long long) memory;
    long long got = syscall(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], 0);
    result[0] = got < 0 ? -(long long) *__errno_location() : got;
}
"""
_MORE = {
    "x86_64": {"openat": 257, "read": 0, "unlinkat": 263, "pwrite64": 18, "memfd_create": 319, "renameat2": 316,
               "write": 1, "mkdirat": 258, "linkat": 265, "getpid": 39, "ftruncate": 77},
    "aarch64": {"openat": 56, "read": 63, "unlinkat": 35, "pwrite64": 68, "memfd_create": 279, "renameat2": 276,
                "write": 64, "mkdirat": 34, "linkat": 37, "getpid": 172, "ftruncate": 46},
}  # fmt: skip
AT_FDCWD = -100


class Intruder:
    """A tenant's kernel that makes system calls."""

    def __init__(self, gpu: hearth.Device) -> None:
        self.gpu = gpu
        self.call = gpu.RawModule(code=SOURCE).get_function("call")
        self.result = gpu.zeros(1, np.int64)
        self.memory = gpu.zeros(4096, np.uint8)

    def do(self, name: str, *arguments: int | bytes, at: int = 0) -> int:
        """Returns the result of a system call in the device process, or minus its errno if it fails. Bytes are copied
        into the kernel's memory, and passed by address."""
        numbers = _MORE[platform.machine()]
        number = numbers[name] if name in numbers else syscalls.number(name)
        assert number is not None
        image, pointers, values = bytearray(4096), 0, [0] * 5
        for index, argument in enumerate(arguments):
            if isinstance(argument, bytes):
                image[at : at + len(argument)] = argument
                values[index], pointers = at, pointers | 1 << index
                at += len(argument) + 8
            else:
                values[index] = argument
        self.memory.set(np.frombuffer(bytes(image), np.uint8))
        words = [np.int64(value) for value in (number, *values)]
        self.call((1,), (1,), (self.result, self.memory, *words, np.int32(pointers)))
        return int(self.result.get()[0])

    def open(self, path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
        return self.do("openat", AT_FDCWD, os.fsencode(path) + b"\0", flags, 0o600)


@pytest.fixture(scope="module")
def walled(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, Mapping[str, str]]]:
    """A daemon with two tenants and an audit log."""
    folder = tmp_path_factory.mktemp("audit")
    config, tokens = tenants("alice", "mallory", audit={"path": str(folder / "audit.log")})
    daemon = DaemonProcess(cache, config, 1, fresh=True)
    yield daemon, tokens
    daemon.stop()
    left = daemon.left_behind()
    daemon.remove()
    assert not left


@pytest.fixture
def intruder(walled: tuple[DaemonProcess, Mapping[str, str]]) -> Iterator[Intruder]:
    daemon, tokens = walled
    with daemon.connect(token=tokens["mallory"]) as node:
        yield Intruder(node.device(0))
    with daemon.connect(token=tokens["alice"]) as node:
        saxpy_works(node.device(0))


@pytest.fixture
def victim(walled: tuple[DaemonProcess, Mapping[str, str]]) -> Iterator[int]:
    """The pid of the process that holds alice's arrays."""
    daemon, tokens = walled
    with daemon.connect(token=tokens["alice"]) as node:
        saxpy_works(node.device(0))
        processes = daemon.status()["devices"][0]["processes"]
        yield next(each["pid"] for each in processes if each["tenant"] == "alice")


DENIED = {-errno.EACCES, -errno.EPERM}


def cached_module(cache: Path) -> Path:
    """Returns the file of a compiled module. Lock files and files being written, which other daemons remove, have a
    suffix."""
    return wait_until(
        lambda: next((path for path in cache.glob("??/*") if path.is_file() and "." not in path.name), None),
        "a cached module",
    )


@confined
def test_kernel_that_stays_in_its_process_works(intruder: Intruder) -> None:
    assert intruder.do("getpid") > 0
    assert intruder.do("memfd_create", b"mine\0", 0) > 2


@confined
def test_files_of_the_host_cannot_be_read(
    intruder: Intruder, walled: tuple[DaemonProcess, Mapping[str, str]], cache: Path
) -> None:
    daemon, _ = walled
    entry = cached_module(cache)
    secrets = ["/etc/passwd", daemon.config_path, "/etc/shadow", cache / "key", entry, "/proc/1/environ"]
    for path in secrets:
        assert intruder.open(path) in DENIED, path
    assert intruder.open("/", os.O_RDONLY | os.O_DIRECTORY) in DENIED
    assert intruder.open(cache, os.O_RDONLY | os.O_DIRECTORY) in DENIED


@confined
def test_files_of_the_host_cannot_be_written(
    intruder: Intruder, walled: tuple[DaemonProcess, Mapping[str, str]], cache: Path, tmp_path: Path
) -> None:
    daemon, _ = walled
    log = next(Path(line.split('"')[1]) for line in daemon.config_path.read_text().splitlines() if "audit.log" in line)
    before = log.read_bytes()
    entry = cached_module(cache)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    mine.chmod(0o600)
    for path in (log, entry, mine, daemon.config_path):
        for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_RDONLY | os.O_TRUNC):
            assert intruder.open(path, flags) in DENIED, path
        assert intruder.do("truncate", os.fsencode(path) + b"\0", 0) in DENIED
        assert intruder.do("unlinkat", AT_FDCWD, os.fsencode(path) + b"\0", 0) in DENIED
        name = os.fsencode(path) + b"\0"
        assert intruder.do("renameat2", AT_FDCWD, name, AT_FDCWD, name[:-1] + b"x\0", 0) in DENIED
        assert intruder.do("linkat", AT_FDCWD, name, AT_FDCWD, name[:-1] + b"x\0", 0) in DENIED | {-errno.EXDEV}
    assert intruder.do("fchmodat", AT_FDCWD, os.fsencode(mine) + b"\0", 0o777, 0) in DENIED
    assert intruder.do("fchownat", AT_FDCWD, os.fsencode(mine) + b"\0", 65534, 65534, 0) in DENIED
    assert intruder.do("utimensat", AT_FDCWD, os.fsencode(mine) + b"\0", 0, 0) in DENIED
    for folder in (tmp_path, cache, "/tmp", "/dev/shm", "/var/tmp"):
        assert intruder.open(Path(folder) / "of-a-test", os.O_WRONLY | os.O_CREAT) in DENIED
        assert intruder.do("mkdirat", AT_FDCWD, os.fsencode(Path(folder) / "of-a-test") + b"\0", 0o700) in DENIED
    assert mine.read_text() == "mine" and mine.stat().st_mode & 0o777 == 0o600
    assert log.read_bytes().startswith(before)


@confined
def test_memory_of_other_processes_is_closed(
    intruder: Intruder, walled: tuple[DaemonProcess, Mapping[str, str]], victim: int
) -> None:
    daemon, _ = walled
    front = daemon.process.pid

    def children(pid: int) -> list[int]:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    (keeper,) = children(victim)
    (broker,) = children(keeper)
    for pid in (front, victim, *children(front), keeper, broker, os.getpid()):
        for name in ("mem", "environ", "maps", "fd", "root", "cwd"):
            assert intruder.open(f"/proc/{pid}/{name}") in DENIED, (pid, name)
        vector = struct.pack("=QQ", 0x1000, 16)
        assert intruder.do("process_vm_readv", pid, vector, 1, vector, 1) in DENIED
        assert intruder.do("process_vm_writev", pid, vector, 1, vector, 1) in DENIED
        assert intruder.do("ptrace", 16, pid, 0, 0) in DENIED  # PTRACE_ATTACH
        assert intruder.do("pidfd_open", pid, 0) in DENIED
        assert intruder.do("kcmp", pid, pid, 0, 0, 0) in DENIED


@confined
def test_other_processes_cannot_be_signalled(
    intruder: Intruder, walled: tuple[DaemonProcess, Mapping[str, str]], victim: int
) -> None:
    daemon, _ = walled
    own = intruder.do("getpid")
    for pid in (daemon.process.pid, victim, 0, -1, os.getpid()):
        assert intruder.do("kill", pid, 0) in DENIED, pid
        assert intruder.do("tgkill", pid, pid, 0) in DENIED, pid
        assert intruder.do("tkill", pid, 0) in DENIED, pid
    assert intruder.do("kill", own, 0) == 0
    file = intruder.do("memfd_create", b"owner\0", 0)
    assert intruder.do("fcntl", file, 8, daemon.process.pid) in DENIED  # F_SETOWN
    assert intruder.do("prlimit64", daemon.process.pid, 7, 0, b"\0" * 16) in DENIED
    assert intruder.do("setpriority", 0, daemon.process.pid, 19) in DENIED


@confined
def test_kernels_cannot_connect_or_start_programs(
    intruder: Intruder, walled: tuple[DaemonProcess, Mapping[str, str]]
) -> None:
    daemon, _ = walled
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_VSOCK):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            assert intruder.do("socket", family, kind, 0) in DENIED
    assert intruder.do("socketpair", socket.AF_UNIX, socket.SOCK_DGRAM, 0, b"\0" * 8) in DENIED
    address = struct.pack("=H", socket.AF_UNIX) + os.fsencode(daemon.socket) + b"\0"
    for descriptor in range(3, 32):
        assert intruder.do("connect", descriptor, address, len(address)) in DENIED
    assert intruder.do("execve", b"/bin/true\0", 0, 0) in DENIED
    assert intruder.do("clone", 17, 0, 0, 0, 0) in DENIED  # SIGCHLD: a process
    assert intruder.do("clone3", 0, 0) == -errno.ENOSYS


@confined
@pytest.mark.parametrize(
    "name",
    [
        "bpf", "io_uring_setup", "keyctl", "mount", "open_by_handle_at", "perf_event_open", "setns", "unshare",
        "userfaultfd", "setuid", "capset", "shmget", "mq_open", "inotify_init1", "personality", "chroot",
    ],
)  # fmt: skip
def test_calls_without_use_for_a_kernel_are_refused(intruder: Intruder, name: str) -> None:
    assert intruder.do(name, 0, 0, 0, 0, 0) in DENIED


@confined
def test_confinement_cannot_be_undone(intruder: Intruder) -> None:
    assert intruder.do("prctl", 4, 1) in DENIED  # PR_SET_DUMPABLE
    assert intruder.do("prctl", 1, 0) in DENIED  # PR_SET_PDEATHSIG
    assert intruder.do("prctl", 3, 0) == bool(os.geteuid())  # PR_GET_DUMPABLE; see `harness.OPEN`
    assert intruder.do("prctl", 39, 0) == 1  # PR_GET_NO_NEW_PRIVS
    assert intruder.do("prctl", 21, 0) == 2  # PR_GET_SECCOMP: filters


@confined
def test_kernels_see_only_descriptors_of_their_process(
    walled: tuple[DaemonProcess, Mapping[str, str]], victim: int
) -> None:
    """The process has only sockets, anonymous files, and its initial standard input and output."""
    if os.geteuid():
        pytest.skip("only the superuser may look into a process that is not dumpable")
    for entry in Path(f"/proc/{victim}/fd").iterdir():
        target = str(entry.readlink())
        assert int(entry.name) < 3 or target.startswith(("socket:", "anon_inode:", "/memfd:", "pipe:")) or (
            target == f"/proc/{victim}/statm"
        ), target  # fmt: skip


@confined
def test_confinement_in_force_is_reported(walled: tuple[DaemonProcess, Mapping[str, str]]) -> None:
    daemon, _ = walled
    said = daemon.status()["devices"][0]["confinement"]
    assert said.startswith("landlock ") and said.endswith("seccomp")


# ---- the compile cache ----


def test_tenants_do_not_share_compiled_modules(start_daemon: StartDaemon, tmp_path: Path) -> None:
    config, tokens = tenants("alice", "mallory", devices={"cpu_tenants": "trusted"}, cache={"dir": str(tmp_path / "c")})
    daemon = start_daemon(**config)
    source = 'extern "C" __global__ void once(int* x) { x[0] = 4217; }'

    def compiled(who: str) -> int:
        with daemon.connect(token=tokens[who]) as node:
            x = node.device(0).zeros(1, np.int32)
            node.device(0).RawModule(code=source).get_function("once")((1,), (1,), (x,))
            assert x.get()[0] == 4217
        return len([*(tmp_path / "c").glob("??/*")])

    first = compiled("alice")
    assert compiled("mallory") == first + 1
    assert compiled("alice") == first + 1


def test_entry_of_another_key_or_name_is_compiled_again(start_daemon: StartDaemon, tmp_path: Path) -> None:
    place = tmp_path / "c"
    source = 'extern "C" __global__ void once(int* x) { x[0] = %d; }'

    def run(key: Path, *values: int) -> list[int]:
        daemon = start_daemon(cache={"dir": str(place), "key": str(key)})
        found = []
        with daemon.connect() as node:
            x = node.device(0).zeros(1, np.int32)
            for value in values:
                node.device(0).RawModule(code=source % value).get_function("once")((1,), (1,), (x,))
                found.append(int(x.get()[0]))
        daemon.stop()
        return found

    keys = tmp_path / "one", tmp_path / "two"
    assert run(keys[0], 1) == [1]
    (first,) = place.glob("??/*")
    assert run(keys[1], 2) == [2]
    (second,) = {*place.glob("??/*")} - {first}
    own = first.read_bytes()
    first.write_bytes(second.read_bytes())  # an entry under another name, which belongs to another key
    second.write_bytes(own)
    assert run(keys[0], 1, 2) == [1, 2]
    assert first.read_bytes()[-100:] == own[-100:]
    assert keys[0].stat().st_mode & 0o777 == 0o600


# ---- kernels without Landlock ----

WITHOUT = """
import errno, sys
from hearthd.confinement import seccomp, syscalls
syscalls._NUMBERS["landlock_create_ruleset"] = (444, 444)
seccomp.install(seccomp.assemble([seccomp.Rule("landlock_create_ruleset", error=errno.ENOSYS)]))
from hearthd.cli.main import main
sys.argv[0] = "hearthd"
main()
"""
"""Runs `hearthd` such that its processes see a kernel without Landlock."""


def without_landlock(config: Mapping[str, Any], folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = folder / "hearth.toml"
    path.write_text(toml({"devices": {"backend": "cpu"}, "cache": {"dir": str(folder / "cache")}, **config}))
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *command, "--config", str(path)],
        capture_output=True, text=True, env=environment(), timeout=60, check=False,
    )  # fmt: skip


def test_tenants_are_refused_by_name_where_the_kernel_has_no_landlock(tmp_path: Path) -> None:
    config, _ = tenants("alice", "mallory")
    done = without_landlock(config, tmp_path, "serve")
    assert done.returncode == 2
    for words in ("'alice', 'mallory'", "Landlock", 'devices.cpu_tenants = "trusted"'):
        assert words in done.stderr, done.stderr
    done = without_landlock(config, tmp_path, "check-config")
    assert "would not start" in done.stdout and "Landlock" in done.stdout
    trusted, _ = tenants("alice", devices={"backend": "cpu", "cpu_tenants": "trusted"})
    done = without_landlock(trusted, tmp_path, "check-config")
    assert "would not start" not in done.stdout and "devices.cpu_tenants" in done.stdout
    done = without_landlock({}, tmp_path, "check-config")
    assert "would not start" not in done.stdout


def test_tenants_that_share_a_process_are_refused(tmp_path: Path) -> None:
    config, _ = tenants("alice", "mallory", devices={"backend": "cpu", "isolation": "shared"})
    path = tmp_path / "hearth.toml"
    path.write_text(toml(config))
    done = hearthd("serve", "--config", str(path))
    assert done.returncode == 2 and "'alice', 'mallory'" in done.stderr and "isolation" in done.stderr
