"""Finished objects are freed immediately, without the garbage collector: it counts objects, not bytes, and would keep a
megabyte for minutes."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front.rpc import transfer_streams
from tests.support.front.fixture import Front, front, refused, run, until

DATA = bytes(100_000)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def receivers() -> int:
    """Returns the number of request streams that gRPC keeps, with their last messages."""
    return sum("_MessageReceiver" in str(each) for each in _of_type("async_generator"))


def frames_of(module: Any) -> list[str]:
    """Returns the functions of a module whose frames are alive, because of unfinished coroutines or of tracebacks."""
    frames = [each for each in _of_type("frame") if isinstance(each, FrameType)]
    return [each.f_code.co_name for each in frames if each.f_code.co_filename == module.__file__]


def _of_type(name: str) -> list[Any]:
    return [each for each in gc.get_objects() if type(each).__name__ == name]


def first(f: Front, transfer: int, size: int) -> device_pb2.UploadRequest:
    return device_pb2.UploadRequest(session_token=f.token, transfer=transfer, data=DATA, size=size, resumable=True)


async def complete(f: Front, transfer: int) -> None:
    """Runs an upload that is complete with its last byte, whether or not its stream has ended."""
    call = f.devices.Upload()
    await call.write(first(f, transfer, 2 * len(DATA)))
    await call.write(device_pb2.UploadRequest(data=DATA))
    assert (await call).received == 2 * len(DATA)


async def too_long(f: Front, transfer: int) -> None:
    call = f.devices.Upload()
    await call.write(first(f, transfer, len(DATA) - 1))
    assert (await refused(call)).reason == Reason.INVALID_ARGUMENT


async def wrong_write(f: Front, transfer: int) -> None:
    call = f.devices.Write()
    command = commands_pb2.Write(buffer=transfer, size=1)
    await call.write(device_pb2.WriteRequest(target=f.target(), command=command, data=DATA))
    assert (await refused(call)).reason == Reason.INVALID_ARGUMENT


@pytest.mark.parametrize("transfer", [complete, too_long, wrong_write])
def test_ended_transfer_leaves_no_message(tmp_path: Path, transfer: Callable[[Front, int], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            with uncollected():
                before = receivers()
                for number in range(1, 4):
                    await transfer(f, number)
                assert receivers() == before
                await until(lambda: not frames_of(transfer_streams))

    run(scenario())


def test_refused_call_is_released_immediately(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            with uncollected():
                waiting = len(_of_type("RPCState"))  # the states that wait for calls of each method
                for _ in range(20):
                    await refused(f.devices.Free(device_pb2.FreeRequest(target=f.target())))
                await until(lambda: len(_of_type("RPCState")) < waiting + 10)

    run(scenario())


HEAPS = """
import ctypes, threading
from hearthd.shared.malloc import keep_freed_memory
keep_freed_memory(1 << 20, arenas=1)
libc = ctypes.CDLL(None)
threads = [threading.Thread(target=libc.malloc, args=(100_000,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, out)
libc.fclose(out)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_threads_share_one_heap() -> None:
    told = subprocess.run([sys.executable, "-c", HEAPS], capture_output=True, text=True, timeout=60, check=True).stdout
    assert told.count("<heap nr=") == 1, told
