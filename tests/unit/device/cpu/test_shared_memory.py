"""Memory of the CPU device that two processes map: read-only for the second, and existing as long as either process."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec

LIMIT = 4 << 20
SIZE = 100_001

ATTACH = """
import ctypes, sys
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
file, size, write = map(int, sys.argv[1:])
server = CpuServer(DeviceSpec(ordinal=0, backend="cpu", index=0))
memory = server.import_shared(file, size)
assert memory.protected and not server.memory_info().in_use
print(ctypes.string_at(memory.address, size).count(b"x"), flush=True)
if write == 1:
    ctypes.memset(memory.address + size // 2, 0, 1)
elif write == 2:  # as native code could try
    libc = ctypes.CDLL(None, use_errno=True)
    print(libc.mprotect(ctypes.c_void_p(memory.address), memory.reserved, 3), flush=True)
elif write == 3:
    sys.stdin.readline()
    print(ctypes.string_at(memory.address, size).count(b"x"), flush=True)
server.release_shared(memory)
"""

EXPORT = """
import ctypes, socket, sys
from hearthd.device.cpu.server import CpuServer
from hearthd.shared.device_spec import DeviceSpec
server = CpuServer(DeviceSpec(ordinal=0, backend="cpu", index=0))
memory = server.create_shared(int(sys.argv[2]))
ctypes.memset(memory.address, 120, memory.size)
end = socket.socket(fileno=int(sys.argv[1]))
socket.send_fds(end, [b"!"], [server.export_shared(memory)])
sys.stdin.readline()
"""


@pytest.fixture
def server() -> Iterator[CpuServer]:
    made = CpuServer(DeviceSpec(ordinal=0, backend="cpu", index=0, memory_limit=LIMIT))
    yield made
    assert made.memory_info().in_use == 0
    made.close()


def attach(file: int, size: int, write: int = 0) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", ATTACH, str(file), str(size), str(write)]
    return subprocess.run(arguments, pass_fds=[file], capture_output=True, text=True, timeout=60, check=False)


def refusal(call: Any, *arguments: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        call(*arguments)
    return refused.value


def test_another_process_can_read_and_cannot_write(server: CpuServer) -> None:
    memory = server.create_shared(SIZE)
    assert memory.size == SIZE
    assert memory.reserved % mmap.PAGESIZE == 0
    assert server.memory_info().in_use == memory.reserved
    ctypes.memset(memory.address, ord("x"), SIZE)
    file = server.export_shared(memory)
    try:
        read = attach(file, SIZE)
        assert (read.returncode, read.stdout.split()) == (0, [str(SIZE)]), read.stderr
        wrote = attach(file, SIZE, write=1)
        assert wrote.returncode == -signal.SIGSEGV
        tried = attach(file, SIZE, write=2)
        assert tried.stdout.split() == [str(SIZE), "-1"], tried.stderr
    finally:
        os.close(file)
    assert ctypes.string_at(memory.address, SIZE) == b"x" * SIZE
    server.release_shared(memory)


def test_memory_outlives_the_process_that_created_it(server: CpuServer) -> None:
    import socket

    ours, theirs = socket.socketpair()
    arguments = [sys.executable, "-c", EXPORT, str(theirs.fileno()), str(SIZE)]
    with ours, theirs, subprocess.Popen(arguments, pass_fds=[theirs.fileno()], stdin=subprocess.PIPE) as exporter:
        _, (file,), _, _ = socket.recv_fds(ours, 1, 1)
        memory = server.import_shared(file, SIZE)
        os.close(file)
        exporter.kill()
        exporter.wait()
    assert ctypes.string_at(memory.address, SIZE) == b"x" * SIZE
    assert server.memory_info().in_use == 0
    server.count_shared(memory)
    server.count_shared(memory)
    assert server.memory_info().in_use == memory.reserved
    server.release_shared(memory)


def test_release_leaves_no_mappings_or_descriptors(server: CpuServer) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:hearth-published")

    files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        memory = server.create_shared(SIZE)
        file = server.export_shared(memory)
        again = server.import_shared(file, SIZE)
        os.close(file)
        assert mappings() == 2
        server.release_shared(memory)
        server.release_shared(again)
    assert mappings() == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def test_limit(server: CpuServer) -> None:
    refused = refusal(server.create_shared, LIMIT + 1)
    assert refused.reason is Reason.OUT_OF_MEMORY
    assert refused.details["requested"] == str(LIMIT + 1)
    all_memory = server.create_shared(LIMIT)
    assert refusal(server.create_shared, 1).reason is Reason.OUT_OF_MEMORY
    server.release_shared(all_memory)


def test_unsealed_and_invalid_files_are_refused(server: CpuServer) -> None:
    """Checks files whose sender could change them later, or truncate them while they are read."""
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, SIZE)
    memory = server.create_shared(SIZE)
    sealed = server.export_shared(memory)
    read, write = os.pipe()
    for file, size in ((unsealed, SIZE), (sealed, memory.reserved + 1), (read, SIZE)):
        assert refusal(server.import_shared, file, size).reason is Reason.INTERNAL
    with pytest.raises(OSError):
        os.ftruncate(sealed, 0)
    for file in (unsealed, sealed, read, write):
        os.close(file)
    server.release_shared(memory)
