"""Work of a new client process before its first result: durations cannot be tested reliably, but their causes can."""

from __future__ import annotations

import ast
import subprocess
import sys
from typing import Any

from tests.support.daemon.harness import DaemonProcess, environment

PROGRAM = """
import sys
at_ask = []

import hearth
connect = hearth.connect
from hearth.transport.framed import FramedTransport

start_call = FramedTransport.start_call
def asking(self, method, *rest):
    at_ask.append([method, [name for name in sys.modules if name.startswith("hearth.")]])
    return start_call(self, method, *rest)
FramedTransport.start_call = asking

import numpy as np
SOURCE = '''
extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
}
'''
standard = set(sys.modules)
with connect(sys.argv[1], name="first") as node:
    gpu = node.device(0)
    connected = set(sys.modules)
    # A compile on a busy machine may take longer than the watchdog waits; its request takes protobuf.
    sys.modules["hearth.session.timing"].TIMING.silence = 600.0
    x, y = gpu.asarray(np.arange(1 << 16, dtype=np.float32)), gpu.empty(1 << 16, np.float32)
    gpu.RawKernel(SOURCE, "twice")((256,), (256,), (x, y, np.int32(1 << 16)))
    assert y.get()[-1] == 2.0 * ((1 << 16) - 1)
    loaded = set(sys.modules)
print({"asked": at_ask, "connected": connected, "loaded": loaded, "by_hearth": loaded - standard})
"""

NOT_NEEDED = {
    "hearth.kernels.bindings", "hearth.arrays.described", "hearth.endpoint.diagnostics", "hearth.failure",
    "hearth.interfaces",
    "hearth.blocking.graph", "hearth.graphs.base_graph", "hearth.blocking.group", "hearth.blocking.dispatch",
    "hearth.kernels.base_pending_dispatch", "hearth.graphs.base_prepared",
    "hearth.blocking.profile", "hearth.profiling.base_profile", "hearth.profiling.base_trace", "hearth.types",
    "hearth.arrays.tensor_map",
    "hearth.transfer.grpc_stream", "hearth.transport.grpc", "hearth_proto.reasons", "json", "pathlib", "random",
    "urllib.parse", "grpc", "asyncio", "logging", "ssl", "google.protobuf", "hearth_proto.v1",
    "hearth_proto.grpc_import", "hearth.arrays.strided", "hearth.transport.memory_segments", "hearth.transfer.shared",
    "mmap",
}  # fmt: skip
"""Modules that are not needed for a first result, and that together take longer to import than all that Hearth needs
for it."""


STEPS = """
    gpu.synchronize()
    double = gpu.RawKernel(SOURCE, "twice")
    done = set(sys.modules)
    for _ in range(200):  # a receipt follows every 64 answers
        double((256,), (256,), (x, y, np.int32(1 << 16)))
        gpu.synchronize()
    print({"more": sorted(set(sys.modules) - done)})
    raise SystemExit
"""


def first_result(daemon: DaemonProcess, program: str = PROGRAM) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.unix], capture_output=True, text=True, env=environment(), timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = ast.literal_eval(done.stdout)
    return found


def test_first_result_imports_only_needed_modules(daemon: DaemonProcess) -> None:
    found = first_result(daemon)
    assert not NOT_NEEDED & found["by_hearth"], sorted(NOT_NEEDED & found["by_hearth"])
    assert {"hearth.blocking.device", "hearth.blocking.module"} <= found["by_hearth"]


def test_further_steps_import_nothing_more(daemon: DaemonProcess) -> None:
    """An import between two steps takes 20 ms, in which the client does no other work."""
    code = PROGRAM.replace("    loaded = set(sys.modules)", STEPS + "    loaded = set(sys.modules)")
    assert code != PROGRAM
    found = first_result(daemon, code)
    assert not found["more"], found["more"]


def test_launch_modules_are_imported_during_the_attach(daemon: DaemonProcess) -> None:
    assert (
        not {"hearth.blocking.module", "hearth.blocking.function", "hearth.kernels.arguments"}
        & first_result(daemon)["connected"]
    )


def test_session_request_is_sent_before_further_imports(daemon: DaemonProcess) -> None:
    ((method, there),) = first_result(daemon)["asked"]
    assert method == "OpenSession"
    assert not {
        "hearth.blocking.device",
        "hearth.blocking.array",
        "hearth.session.connection",
        "hearth.session.lease",
    } & set(there), there


def test_first_result_needs_one_call_and_one_stream(daemon: DaemonProcess) -> None:
    def calls() -> dict[str, float]:
        handled: dict[str, float] = {}
        for line in daemon.get("/metrics").body.splitlines():
            if line.startswith("grpc_server_started_total{") or line.startswith("grpc_server_handled_total{"):
                name, _, value = line.rpartition(" ")
                handled[name] = float(value)
        return handled

    before = calls()
    first_result(daemon)
    more = {name: value - before.get(name, 0) for name, value in calls().items() if value != before.get(name, 0)}
    methods = sorted(name.partition('grpc_method="')[2].partition('"')[0] for name in more)
    assert methods and set(methods) == {"OpenSession", "Execute", "CloseSession"} and set(more.values()) == {1}, more
