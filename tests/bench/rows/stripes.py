"""Upload and download over TCP in stripes, compared with the same number of bare Python sockets between two
processes."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.bench.context import Context, Side
from tests.bench.rows.transfers import MIB, _rates
from tests.bench.socket_peer import REQUEST, receive
from tests.bench.stats import Row, Samples, Summary
from tests.support.client.internals import session_of


def measure(context: Context) -> list[Row]:
    """Measures 1, 4 and 8 stripes; the bounds are on the ratio to the same number of bare sockets."""
    sizes = [256, 1024]
    common = {"sizes": sizes, "repeats": context.pick(3, 5)}
    rows = []
    for count in (1, 4, 8):
        sides = {
            "hearth": Side("rows.stripes:hearth", {"target": context.daemon.tcp, "count": count, **common}),
            "bare": Side("rows.stripes:bare", {"count": count, **common}),
        }
        measured = context.take_turns(sides)
        for way in ("upload", "download"):
            for size in sizes:
                key = f"{way} {size}"
                ours, theirs = Summary.of(measured["hearth"][key]), Summary.of(measured["bare"][key])
                what = f"{way} {size} MiB over TCP, stripes: {count}"
                rows.append(Row("stripes", what, "GB/s", ours, "higher", f"bare sockets: {count}", theirs, 0.7, 0.9))
    return rows


def hearth(target: str, count: int, sizes: list[int], repeats: int) -> Samples:
    """Measures a client whose arrays are allocated on both sides; an upload ends when the device has the data."""
    import numpy as np

    import hearth

    measured: Samples = {}
    with hearth.connect(target) as node:
        session_of(node).transport.stripes = count
        gpu = node.device(0)
        for mib in sizes:
            host = np.random.default_rng(1).integers(0, 255, mib * MIB, np.uint8)
            out = np.ones_like(host)
            x = gpu.asarray(host)

            def upload(host: Any = host, x: Any = x) -> None:
                x.set(host)
                gpu.synchronize()

            measured[f"upload {mib}"] = _rates(upload, host.nbytes, repeats)
            measured[f"download {mib}"] = _rates(functools.partial(x.get, out=out), host.nbytes, repeats)
            assert (out == host).all()
            x.free()
    return measured


def bare(count: int, sizes: list[int], repeats: int) -> Samples:
    """Measures two Python processes with a thread for each socket at both ends, and allocated memory."""
    import numpy as np

    measured: Samples = {}
    command = [sys.executable, "-m", "tests.bench.socket_peer", str(max(sizes) * MIB)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdout is not None and peer.stdin is not None
        port = int(peer.stdout.readline().split()[1])
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        for connection in connections:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for mib in sizes:
            size = mib * MIB
            memory = memoryview(np.random.default_rng(1).integers(0, 255, size, np.uint8))  # type: ignore[arg-type]
            share = size // count

            def upload(connection: socket.socket, at: int, memory: memoryview = memory, share: int = share) -> None:
                connection.sendall(REQUEST.pack(b"u", at, share))
                connection.sendall(memory[at : at + share])
                receive(connection, memoryview(bytearray(1)))

            def download(connection: socket.socket, at: int, memory: memoryview = memory, share: int = share) -> None:
                connection.sendall(REQUEST.pack(b"d", at, share))
                receive(connection, memory[at : at + share])

            for name, one in (("upload", upload), ("download", download)):
                measured[f"{name} {mib}"] = _rates(
                    functools.partial(_all, one, connections, share), share * count, repeats
                )
        for connection in connections:
            connection.close()
        peer.stdin.close()
    return measured


def _all(one: Callable[[socket.socket, int], None], connections: list[socket.socket], share: int) -> None:
    threads = [
        threading.Thread(target=one, args=(connection, index * share)) for index, connection in enumerate(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
