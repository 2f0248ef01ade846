"""Upload and download of ordinary NumPy arrays. The host side is allocated and touched before, on both sides."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from tests.bench import echo_client
from tests.bench.context import Context, Side
from tests.bench.stats import Row, Samples, Summary

MIB = 1 << 20
_BARE = "bare grpc.aio, 1 MiB chunks"


def measure(context: Context) -> list[Row]:
    """Against bare streams on the same kind of socket; on a GPU also against CuPy and pinned copies."""
    sizes = [64, 256]
    common = {"sizes": sizes, "repeats": context.pick(3, 4)}
    sides = {
        "tcp": Side("rows.transfers:hearth", {"target": context.daemon.tcp, **common}),
        "bare tcp": Side("rows.transfers:bare", {"target": context.echo_tcp, **common}),
        "unix": Side("rows.transfers:hearth", {"target": context.daemon.unix, **common}),
        "bare unix": Side("rows.transfers:bare", {"target": context.echo_unix, **common}),
    }
    if context.cuda:
        sides["cupy"] = Side("rows.transfers:cupy", common)
    measured = context.take_turns(sides)
    rows = []
    for way in ("upload", "download"):
        for size in sizes:
            key, what = f"{way} {size}", f"{way} {size} MiB"
            for name, label in (("tcp", "TCP"), ("unix", "Unix")):
                ours, theirs = Summary.of(measured[name][key]), Summary.of(measured[f"bare {name}"][key])
                rows.append(
                    Row("transfers", f"{what}, gRPC on {label}", "GB/s", ours, "higher", _BARE, theirs, 0.8, 0.95)
                )
            if context.cuda:
                ours = Summary.of(measured["unix"][key])
                local = Summary.of(measured["cupy"][key])
                pinned = Summary.of(measured["cupy"][f"pinned {key}"])
                name = "cupy.asarray" if way == "upload" else "cupy.asnumpy"
                bounds: tuple[Any, Any] = (1.0, 1.5) if way == "upload" else (None, None)
                what += ", same host, ordinary array"
                rows.append(Row("transfers", what, "GB/s", ours, "higher", name, local, *bounds))
                rows.append(Row("transfers", what, "GB/s", ours, "higher", "pinned cudaMemcpyAsync", pinned))
    return rows


def _rates(once: Callable[[], Any], size: int, repeats: int) -> list[float]:
    """GB/s (1e9 bytes) of each repeat, after one to warm up."""
    samples = []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        once()
        if repeat:
            samples.append(size / (time.perf_counter() - started) / 1e9)
    return samples


def hearth(target: str, sizes: list[int], repeats: int) -> Samples:
    """A client; an upload counts until the device has the data."""
    import numpy as np

    import hearth

    measured: Samples = {}
    with hearth.connect(target) as node:
        gpu = node.device(0)
        for mib in sizes:
            host = np.random.default_rng(1).integers(0, 255, mib * MIB, np.uint8)
            out = np.ones_like(host)
            x = gpu.asarray(host)

            def upload(host: Any = host) -> None:
                gpu.asarray(host)
                gpu.synchronize()

            measured[f"upload {mib}"] = _rates(upload, host.nbytes, repeats)
            measured[f"download {mib}"] = _rates(functools.partial(x.get, out=out), host.nbytes, repeats)
            assert (out == host).all()
            x.free()
    return measured


def cupy(sizes: list[int], repeats: int) -> Samples:
    """CuPy in its own process: ordinary arrays, and pinned memory with cudaMemcpyAsync."""
    import cupy
    import numpy as np
    from cupy.cuda import runtime

    measured: Samples = {}
    stream = cupy.cuda.get_current_stream()
    for mib in sizes:
        size = mib * MIB
        host = np.random.default_rng(1).integers(0, 255, size, np.uint8)
        out = np.ones_like(host)
        x = cupy.asarray(host)
        memory = cupy.cuda.alloc_pinned_memory(size)
        np.frombuffer(memory, np.uint8, size)[:] = host
        pinned, device = int(memory.ptr), int(x.data.ptr)

        def upload(host: Any = host) -> None:
            cupy.asarray(host)
            stream.synchronize()

        def copy(to: int, of: int, kind: int, size: int = size) -> None:
            runtime.memcpyAsync(to, of, size, kind, stream.ptr)
            stream.synchronize()

        pinned_up = functools.partial(copy, device, pinned, runtime.memcpyHostToDevice)
        pinned_down = functools.partial(copy, pinned, device, runtime.memcpyDeviceToHost)
        measured[f"upload {mib}"] = _rates(upload, size, repeats)
        measured[f"download {mib}"] = _rates(functools.partial(cupy.asnumpy, x, out=out), size, repeats)
        measured[f"pinned upload {mib}"] = _rates(pinned_up, size, repeats)
        measured[f"pinned download {mib}"] = _rates(pinned_down, size, repeats)
        del x, memory
    return measured


def bare(target: str, sizes: list[int], repeats: int) -> Samples:
    """Chunks that exist already, each with memory of its own, up; and down, where they are only counted."""
    from tests.bench.echo_server import chunks

    measured: Samples = {}
    with echo_client.connect(target) as channel:
        up, down = channel.stream_unary(echo_client.path("Up")), channel.unary_stream(echo_client.path("Down"))
        for mib in sizes:
            size = mib * MIB
            data = chunks(size)

            def upload(data: list[bytes] = data, size: int = size) -> None:
                assert int(up(iter(data))) == size

            def download(size: int = size) -> None:
                assert sum(map(len, down(str(size).encode()))) == size

            measured[f"upload {mib}"] = _rates(upload, size, repeats)
            measured[f"download {mib}"] = _rates(download, size, repeats)
    return measured
