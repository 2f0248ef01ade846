"""Arrays exported to other processes of this host: both sides use the same memory, until it is released.

The CPU backend uses shared memory, and takes the same path through the daemon; tests of CUDA IPC are in
`tests/gpu/test_ipc_gpu.py`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hearth
from hearth.interop.ipc import Exported
from hearth.interop.ipc_file import fetch
from hearth_proto import frames
from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, on_cpu, wait_until
from tests.support.daemon.kernels import COMMON, common, gated
from tests.support.daemon.raw import TIMEOUT, Raw, refused
from tests.support.daemon.tenants import tenant, tenants

pytestmark = on_cpu

HOST = np.arange(3000, dtype=np.float32).reshape(30, 100)


def reason_of(call: Callable[[], object]) -> str:
    with pytest.raises(hearth.HearthError) as refusal:
        call()
    assert refusal.value.fix, refusal.value
    return refusal.value.reason


def seen(view: Exported) -> np.ndarray[Any, Any]:
    return np.asarray(view)


def export_raw(raw: Raw, buffer: int, number: int = 1) -> device_pb2.ExportIpcResponse:
    request = device_pb2.ExportIpcRequest(target=raw.target(), buffer=buffer, export=number)
    answer: device_pb2.ExportIpcResponse = raw.device.ExportIpc(request, timeout=TIMEOUT)
    return answer


# ---- the same memory ----


def test_writes_of_either_side_are_visible_to_both(gpu: hearth.Device) -> None:
    x = gpu.asarray(HOST)
    with x.ipc() as view:
        host = seen(view)
        np.testing.assert_array_equal(host, HOST)
        assert (view.shape, view.dtype, view.strides) == (x.shape, x.dtype, x.strides)
        host *= 2
        np.testing.assert_array_equal(x.get(), HOST * 2)
        x.fill(7)
        gpu.synchronize()
        assert (host == 7).all()
        assert not hasattr(view, "__cuda_array_interface__")
    np.testing.assert_array_equal(x.get(), np.full_like(HOST, 7))


def test_kernels_use_relocated_memory(gpu: hearth.Device) -> None:
    """Launches in the replay cache, which contain the previous address, use the new memory as well."""
    saxpy = common(gpu, "saxpy")
    n = HOST.size
    x, y = gpu.asarray(HOST.ravel()), gpu.zeros(n, np.float32)
    arguments = (np.float32(1), x, y, np.int32(n))
    for _ in range(50):
        saxpy((-(-n // 256),), (256,), arguments)
    with x.ipc(), y.ipc() as view:
        seen(view)[:] = 0
        for _ in range(50):
            saxpy((-(-n // 256),), (256,), arguments)
        gpu.synchronize()
        np.testing.assert_array_equal(seen(view), 50 * HOST.ravel())


def test_parts_and_strides(gpu: hearth.Device) -> None:
    x = gpu.asarray(HOST)
    with x[3:7, 10:20].ipc() as part, x.ipc() as whole, x[5].ipc() as row:
        np.testing.assert_array_equal(seen(part), HOST[3:7, 10:20])
        np.testing.assert_array_equal(np.from_dlpack(part), HOST[3:7, 10:20])
        seen(part)[...] = -1
        seen(row)[0] = 77
        assert seen(whole)[5, 0] == 77
        expected = HOST.copy()
        expected[3:7, 10:20], expected[5, 0] = -1, 77
        np.testing.assert_array_equal(x.get(), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "complex64", "bool"])
def test_dtypes(gpu: hearth.Device, dtype: str) -> None:
    host = np.arange(10).astype(dtype)
    with gpu.asarray(host).ipc() as view:
        for array in (seen(view), np.from_dlpack(view)):
            assert array.dtype == host.dtype
            np.testing.assert_array_equal(array, host)


def test_earlier_work_is_complete_after_export(raw: Raw) -> None:
    spin = raw.function(COMMON, "spin")
    one = c.Dim3(x=1, y=1, z=1)
    for number in range(1, 6):
        buffer = raw.buffer(bytes(4))
        raw.call("Launch", c.Launch(function=spin, grid=one, block=one, arguments=[c.Argument(int64=20_000_000)]))
        raw.call("Fill", c.Fill(buffer=buffer, size=4, pattern=b"\5\0\0\0"))
        answer = export_raw(raw, buffer, number)
        file = fetch(answer.path, answer.ticket)
        try:
            assert os.pread(file, 4, 0) == b"\5\0\0\0"
        finally:
            os.close(file)


def test_export_waits_for_work_on_the_buffer(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    """A kernel that uses the array delays its export, and no other work."""
    x = gpu.zeros(4, np.int32)
    with gated(gpu) as gate, gpu.stream() as side, ThreadPoolExecutor(1) as pool, daemon.connect() as node:
        gate.hold(after=x, stream=side)
        exporting = pool.submit(x.ipc)
        other = node.device(0).asarray(HOST)
        with other.ipc() as view:
            np.testing.assert_array_equal(seen(view), HOST)
        assert not exporting.done()
        gate.open()
        with exporting.result(30) as view:
            assert seen(view)[0] == 1


def test_exported_memory_contains_no_other_data(raw: Raw) -> None:
    """The exported memory contains neither another buffer of the session, nor the previous contents of the memory."""
    first = raw.buffer(b"\xaa" * 100)
    for _ in range(20):
        raw.buffer(b"\xbb" * 100)
    answer = export_raw(raw, first)
    file = fetch(answer.path, answer.ticket)
    try:
        assert answer.size == 100 <= answer.allocation_bytes == os.fstat(file).st_size
        assert os.pread(file, 1 << 20, 0) == b"\xaa" * 100 + bytes(answer.allocation_bytes - 100)
        with pytest.raises(OSError, match=r"."):
            os.ftruncate(file, 0)  # truncating the file could end the device process
    finally:
        os.close(file)


# ---- refusals ----


def test_unexportable_arrays_are_refused(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    assert reason_of(gpu.zeros(0).ipc) == "INVALID_ARGUMENT"
    freed = gpu.zeros(4)
    freed.free()
    assert reason_of(freed.ipc) == "INVALID_HANDLE"
    published = gpu.zeros(4)
    published.publish("ipc")
    assert reason_of(published.ipc) == "INVALID_ARGUMENT"
    assert reason_of(gpu.attach("ipc").ipc) == "INVALID_ARGUMENT"
    in_graph = gpu.zeros(4)
    with gpu.graph() as graph:
        in_graph.fill(1)
    assert reason_of(in_graph.ipc) == "INVALID_ARGUMENT"
    del graph
    variable = gpu.RawModule(code="__device__ int v;").get_global("v", np.int32)
    assert reason_of(variable.ipc) == "INVALID_ARGUMENT"
    with daemon.connect() as node, hearth.connect(daemon.grpc) as far:
        x = far.device(0).asarray(HOST)
        assert reason_of(x.ipc) == "UNSUPPORTED"
        np.testing.assert_array_equal(x.get(), HOST)
        assert reason_of(node.device(0).attach("ipc").ipc) == "INVALID_ARGUMENT"
    assert daemon.gauge("buffers_exported") == 0


def test_exported_arrays_cannot_be_published(gpu: hearth.Device) -> None:
    """A process that has mapped the memory may write to it at any time; a copy belongs to the session
    alone."""
    x = gpu.asarray(HOST)
    x.ipc().close()
    assert reason_of(lambda: x.publish("exported")) == "INVALID_ARGUMENT"
    x.copy().publish("exported")
    np.testing.assert_array_equal(gpu.attach("exported").get(), HOST)


def test_graphs_of_exported_arrays(gpu: hearth.Device) -> None:
    x = gpu.zeros(4, np.float32)
    with x.ipc() as view:
        with gpu.graph() as graph:
            x.fill(3)
        with x.ipc() as again:  # the memory is not moved again
            assert again.address
        graph.launch(1)
        gpu.synchronize()
        assert (seen(view) == 3).all()


def test_raw_requests(raw: Raw, daemon: DaemonProcess) -> None:
    buffer = raw.buffer(b"1234")
    with Raw(daemon.unix) as other:
        theirs = other.buffer(b"5678")
        for handle in (theirs + 1000, 2**64 - 1, 0):
            assert refused(export_raw, raw, handle).reason is Reason.INVALID_HANDLE
    assert refused(export_raw, raw, buffer, 0).reason is Reason.INVALID_ARGUMENT
    export_raw(raw, buffer, 2**64 - 1)
    assert refused(export_raw, raw, buffer, 2**64 - 1).reason is Reason.HANDLE_IN_USE
    for _ in range(2):  # the second release names no export
        raw.device.ReleaseIpc(device_pb2.ReleaseIpcRequest(target=raw.target(), export=2**64 - 1), timeout=TIMEOUT)
    export_raw(raw, buffer, 2**64 - 1)
    with Raw(daemon.grpc) as far:
        assert refused(export_raw, far, far.buffer(b"1")).reason is Reason.UNSUPPORTED


def test_failed_contents_are_not_exported(raw: Raw) -> None:
    with raw.execute() as stream:
        buffer = raw.mint()
        stream.batch(
            c.Command(allocate=c.Allocate(buffer=buffer, size=4)),
            c.Command(copy=c.Copy(source=buffer, destination=buffer, size=99)),
        )
        stream.ask(c.Command(memory_usage=c.MemoryUsage()))
        assert refused(export_raw, raw, buffer).reason is Reason.DEPENDENCY_FAILED
        assert not stream.ask(c.Command(fill=c.Fill(buffer=buffer, size=4, pattern=b"\1"))).HasField("error")
        assert export_raw(raw, buffer).size == 4


def test_tickets(raw: Raw) -> None:
    """Each ticket is valid for one connection; an invalid ticket is refused."""
    answer = export_raw(raw, raw.buffer(b"1234"))
    for ticket in (bytes(32), answer.ticket[::-1]):
        with pytest.raises(hearth.ConnectError):
            fetch(answer.path, ticket)
    os.close(fetch(answer.path, answer.ticket))
    with pytest.raises(hearth.ConnectError):
        fetch(answer.path, answer.ticket)
    with pytest.raises(hearth.UnsupportedError):
        fetch("/nowhere/at/all", answer.ticket)
    # a connection that ends early affects no other
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(answer.path)
        connection.sendall(frames.encode(Kind.TICKET, bytes(32))[:10])
    os.close(fetch(*_again(raw)))


def _again(raw: Raw) -> tuple[str, bytes]:
    answer = export_raw(raw, raw.buffer(b"5"), 9)
    return answer.path, answer.ticket


def test_rights_and_quotas(start_daemon: StartDaemon) -> None:
    config, tokens = tenants(
        tenant("reader", rights=["allocate", "read"]), tenant("small", quotas={"device_bytes": 10_000})
    )
    daemon = start_daemon(**config)
    with daemon.connect(token=tokens["reader"]) as node:
        x = node.device(0).zeros(4)
        with pytest.raises(hearth.AuthenticationError) as refusal:
            x.ipc()
        assert refusal.value.details["right"] == "write"
    with daemon.connect(token=tokens["small"]) as node:
        gpu = node.device(0)
        x, fits = gpu.zeros(8000, np.uint8), gpu.zeros(100, np.uint8)
        assert reason_of(x.ipc) == "QUOTA_EXCEEDED"  # for a moment the array would need its memory twice
        assert (x.get() == 0).all()
        fits.ipc().close()


# ---- the end of an export ----


def test_export_keeps_memory_alive(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    base = gpu.memory_usage()
    x = gpu.asarray(HOST)
    view = x.ipc()
    other = x.ipc()
    assert daemon.gauge("buffers_exported") == 2
    host = seen(view)
    x.free()
    gpu.synchronize()
    np.testing.assert_array_equal(host, HOST)
    assert gpu.memory_usage().bytes_in_use == base.bytes_in_use + HOST.nbytes
    view.close()
    view.close()
    assert view.closed and reason_of(lambda: view.address) == "CANCELLED"
    assert gpu.memory_usage().bytes_in_use == base.bytes_in_use + HOST.nbytes
    other.close()
    usage = gpu.memory_usage()
    assert (usage.bytes_in_use, usage.allocations) == (base.bytes_in_use, base.allocations)
    assert daemon.gauge("buffers_exported") == 0
    assert (host[0] == HOST[0]).all(), "mapped for as long as an array refers to it"


def test_unreferenced_exports_are_released(gpu: hearth.Device, daemon: DaemonProcess) -> None:
    x = gpu.asarray(HOST)
    host = seen(x.ipc())  # the host array keeps the export alive
    gc.collect()
    assert daemon.gauge("buffers_exported") == 1
    np.testing.assert_array_equal(host, HOST)
    tensor = np.from_dlpack(x.ipc())
    del host
    gc.collect()
    wait_until(lambda: daemon.gauge("buffers_exported") == 1, "the first one's release")
    np.testing.assert_array_equal(tensor, HOST)
    del tensor
    gc.collect()
    wait_until(lambda: daemon.gauge("buffers_exported") == 0, "the second one's release")


def test_the_session_ends_first(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        view = node.device(0).asarray(HOST).ipc()
        host = seen(view)
    wait_until(lambda: daemon.gauge("buffers_exported") == 0, "the end of the session's exports")
    np.testing.assert_array_equal(host, HOST)
    host[...] = 1
    view.close()


CLIENT = """
import sys, numpy as np, hearth
node = hearth.connect(sys.argv[1])
x = node.device(0).asarray(np.arange(1000, dtype=np.int64))
view = x.ipc()
np.asarray(view)[0] = 5
print(x.get()[0], flush=True)
sys.stdin.readline()
"""


def test_a_client_is_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(sessions={"lease": "5s"})
    arguments = [sys.executable, "-c", CLIENT, daemon.unix]
    pid = daemon.device_pid()
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, env=environment()
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "5\n"
        assert daemon.gauge("buffers_exported") == 1
        client.kill()
    wait_until(lambda: daemon.gauge("buffers_exported") == 0, "its lease's end")
    with daemon.connect() as node:
        wait_until(lambda: node.device(0).memory_usage().bytes_reserved == 0, "the memory's return")
    assert daemon.device_pid() == pid


def test_the_device_process_is_killed(lossy: DaemonProcess) -> None:
    with lossy.connect() as node:
        gpu = node.device(0)
        x, first = gpu.asarray(HOST), gpu.generation
        view = x.ipc()
        host = seen(view)
        os.kill(lossy.device_pid(), signal.SIGKILL)
        wait_until(lambda: lossy.generation() == first + 1, "a new process")
        with contextlib.suppress(hearth.DeviceLostError):
            gpu.synchronize()
        np.testing.assert_array_equal(host, HOST)
        host[...] = 3
        assert reason_of(x.get) == reason_of(x.ipc) == "BUFFER_LOST"
        view.close()
        again = gpu.asarray(host)
        with again.ipc() as fresh:
            assert (seen(fresh) == 3).all()


def test_the_daemon_is_killed(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    node = daemon.connect(timeout=5)
    view = node.device(0).asarray(HOST).ipc()
    host = seen(view)
    daemon.process.kill()
    daemon.process.wait()
    np.testing.assert_array_equal(host, HOST)
    view.close()
    node.close()


def test_many_concurrent_exports(daemon: DaemonProcess) -> None:
    """Several threads map a few arrays while work runs on the arrays; no descriptor is left open."""
    with daemon.connect() as node:
        gpu = node.device(0)
        arrays = [gpu.asarray(HOST + index) for index in range(4)]
        front, device = daemon.process.pid, daemon.device_pid()

        def work(turn: int) -> None:
            array = arrays[turn % 4]
            array.fill(turn % 4)
            with array.ipc() as view:
                assert (seen(view) == turn % 4).all()

        def opened() -> int:
            return max(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (front, device))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(8)))
            before = opened()
            list(pool.map(work, range(60)))
        assert daemon.gauge("buffers_exported") == 0
        wait_until(lambda: opened() <= before + 2, "the files' closing")


def test_exports_are_in_the_audit_log(start_daemon: StartDaemon, tmp_path: Path) -> None:
    log = tmp_path / "audit"
    daemon = start_daemon(audit={"path": str(log)})
    with daemon.connect() as node:
        node.device(0).asarray(HOST).ipc().close()
    daemon.stop()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [event["size"] for event in events if event["event"] == "export"] == [HOST.nbytes]
