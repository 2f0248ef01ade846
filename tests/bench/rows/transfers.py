"""Upload and download of NumPy arrays, pinned and ordinary. The host memory is allocated and touched first, on both
sides."""

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
    """Compares transfers over gRPC with bare streams on the same kind of socket; on the same host, with CuPy and pinned
    copies or, without a GPU, with NumPy's copies."""
    return [*_over_grpc(context), *_same_host(context)]


def _over_grpc(context: Context) -> list[Row]:
    sizes = [64, 256]
    common = {"sizes": sizes, "repeats": context.pick(3, 4)}
    alone = {**common, "lanes": False}
    measured = context.take_turns(
        {
            "tcp": Side("rows.transfers:hearth", {"target": context.daemon.tcp, **alone}),
            "bare tcp": Side("rows.transfers:bare", {"target": context.echo_tcp, **common}),
            "unix": Side("rows.transfers:hearth", {"target": context.daemon.unix, **alone}),
            "bare unix": Side("rows.transfers:bare", {"target": context.echo_unix, **common}),
        }
    )
    rows = []
    for way in ("upload", "download"):
        for size in sizes:
            for name, label in (("tcp", "TCP"), ("unix", "Unix")):
                key, what = f"{way} {size}", f"{way} {size} MiB, gRPC on {label}"
                ours, theirs = Summary.of(measured[name][key]), Summary.of(measured[f"bare {name}"][key])
                rows.append(Row("transfers", what, "GB/s", ours, "higher", _BARE, theirs, 0.8, 0.95))
    return rows


def _same_host(context: Context) -> list[Row]:
    sizes = [64, 1024 if context.cuda else 256]
    common = {"sizes": sizes, "repeats": context.pick(4, 8), "least": context.pick(1024, 4096)}
    sides = {
        "hearth": Side("rows.transfers:hearth", {"target": context.daemon.unix, "pinned": True, **common}),
        "local": Side(f"rows.transfers:{'cupy' if context.cuda else 'numpy'}", common),
    }
    measured = context.take_turns(sides)
    rows = []
    for way in ("upload", "download"):
        for size in sizes:
            key, what = f"{way} {size}", f"{way} {size} MiB, same host"
            kinds: list[tuple[str, str, str, str, Any, Any]] = [
                ("pinned array", f"pinned {key}", "pinned cudaMemcpyAsync", f"pinned {key}", 0.9, 0.98),
                ("ordinary array", key, "cupy.asarray" if way == "upload" else "cupy.asnumpy", key, 1.0, 1.5),
                ("ordinary array", key, "pinned cudaMemcpyAsync", f"pinned {key}", None, None),
            ]
            if not context.cuda:
                kinds = [(kind, name, "NumPy copy", f"copy {size}", None, None) for kind, name, *_ in kinds[:2]]
            for kind, ours, label, theirs, at_least, aim in kinds:
                pair = Summary.of(measured["hearth"][ours]), Summary.of(measured["local"][theirs])
                rows.append(
                    Row("transfers", f"{what}, {kind}", "GB/s", pair[0], "higher", label, pair[1], at_least, aim)
                )
    return rows


def _rates(once: Callable[[], Any], size: int, repeats: int, least: int = 0) -> list[float]:
    """Returns GB/s (1e9 bytes) of each repeat, after an eighth of that number as warm-up; a small copy is repeated
    until at least `least` MiB have been moved."""
    repeats = max(repeats, least * MIB // size)
    samples = []
    for repeat in range(-max(1, repeats // 8), repeats):
        started = time.perf_counter()
        once()
        if repeat >= 0:
            samples.append(size / (time.perf_counter() - started) / 1e9)
    return samples


def hearth(
    target: str, sizes: list[int], repeats: int, lanes: bool = True, pinned: bool = False, least: int = 0
) -> Samples:
    """Measures a client of Hearth; an upload ends when the device has the data. `pinned` also measures arrays in pinned
    memory."""
    import numpy as np

    import hearth

    measured: Samples = {}
    with hearth.connect(target, lanes=lanes) as node:
        gpu = node.device(0)
        for mib in sizes:
            host = np.random.default_rng(1).integers(0, 255, mib * MIB, np.uint8)
            out = np.ones_like(host)
            x = gpu.asarray(host)

            def upload(host: Any = host) -> None:
                gpu.asarray(host)
                gpu.synchronize()

            counts = host.nbytes, repeats, least
            measured[f"upload {mib}"] = _rates(upload, *counts)
            measured[f"download {mib}"] = _rates(functools.partial(x.get, out=out), *counts)
            assert (out == host).all()
            if pinned:
                up, down = hearth.empty_pinned(host.shape, host.dtype), hearth.zeros_pinned(host.shape, host.dtype)
                up[...] = host

                def set_pinned(x: Any = x, up: Any = up) -> None:
                    x.set(up)
                    gpu.synchronize()

                measured[f"pinned upload {mib}"] = _rates(set_pinned, *counts)
                measured[f"pinned download {mib}"] = _rates(functools.partial(x.get, out=down), *counts)
                assert (down == host).all()
            x.free()
    return measured


def numpy(sizes: list[int], repeats: int, least: int = 0) -> Samples:
    """Measures a copy from one array to another by one thread."""
    import numpy as np

    measured: Samples = {}
    for mib in sizes:
        host = np.random.default_rng(1).integers(0, 255, mib * MIB, np.uint8)
        out = np.ones_like(host)
        measured[f"copy {mib}"] = _rates(functools.partial(np.copyto, out, host), host.nbytes, repeats, least)
    return measured


def cupy(sizes: list[int], repeats: int, least: int = 0) -> Samples:
    """Measures CuPy in its own process: ordinary arrays, and pinned memory with cudaMemcpyAsync."""
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
        measured[f"upload {mib}"] = _rates(upload, size, repeats, least)
        measured[f"download {mib}"] = _rates(functools.partial(cupy.asnumpy, x, out=out), size, repeats, least)
        measured[f"pinned upload {mib}"] = _rates(pinned_up, size, repeats, least)
        measured[f"pinned download {mib}"] = _rates(pinned_down, size, repeats, least)
        del x, memory
    return measured


def bare(target: str, sizes: list[int], repeats: int) -> Samples:
    """Measures the upload of existing chunks, each in separate memory, and the download, in which the chunks are only
    counted."""
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
