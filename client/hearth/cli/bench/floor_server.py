"""Server of this machine's floors: ``python -P floor_server.py unix`` (or ``tcp``).

It does the minimum that a server can do: it echoes or acknowledges gRPC messages, and sends and receives bytes on a
bare socket. It prints the addresses of both, and ends when its stdin ends, so that it never outlives its parent. Its
Unix sockets are abstract, so that no file is left behind. It imports nothing of Hearth.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import struct
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from typing import Any

SERVICE = "hearth.bench.Floor"
HEADER = struct.Struct("<cQ")
"""Request on the bare socket: direction of the transfer, and number of bytes."""
UP, DOWN = b"u", b"d"
DONE = b"."
CHUNK = 1 << 20


async def _echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for message in requests:
        yield message


async def _acknowledge(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for _message in requests:
        yield DONE


async def _serve(kind: str) -> None:
    import grpc
    import grpc.aio

    raw, raw_address = _listen(kind)
    threading.Thread(target=_accept, args=(raw,), daemon=True).start()
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    methods = {
        "Echo": grpc.stream_stream_rpc_method_handler(_echo),
        "Acknowledge": grpc.stream_stream_rpc_method_handler(_acknowledge),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    address = f"unix-abstract:hearth-bench-{secrets.token_hex(8)}" if kind == "unix" else "127.0.0.1:0"
    port = server.add_insecure_port(address)
    await server.start()
    grpc_address = address if kind == "unix" else f"127.0.0.1:{port}"
    print(grpc_address, raw_address, type(asyncio.get_running_loop()).__module__.partition(".")[0], flush=True)
    await server.wait_for_termination()


def _listen(kind: str) -> tuple[socket.socket, str]:
    if kind == "unix":
        name = f"hearth-bench-{secrets.token_hex(8)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{name}")
        listener.listen()
        return listener, name
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, str(listener.getsockname()[1])


def _accept(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    """Serves the requests of one connection until it ends."""
    buffer = memoryview(bytearray(os.urandom(64) * (CHUNK // 64)))
    with connection:
        try:
            while True:
                header = connection.recv(HEADER.size, socket.MSG_WAITALL)
                if len(header) < HEADER.size:
                    return
                direction, remaining = HEADER.unpack(header)
                while remaining > 0:
                    chunk = buffer[: min(remaining, CHUNK)]
                    moved = connection.send(chunk) if direction == DOWN else connection.recv_into(chunk)
                    if not moved:
                        return
                    remaining -= moved
                if direction == UP:
                    connection.sendall(DONE)
        except OSError:
            return


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Runs `main` on uvloop if it is installed, like a daemon's front, because that gives the lower floor."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _run(_serve(sys.argv[1]))
