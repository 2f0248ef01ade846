"""The bare grpc.aio server (uvloop) of the baselines: `python -m tests.bench.echo_server SOCKET`.

For each kind of traffic it does the minimum that a server in Python can do: return a message, count bytes, send bytes,
or parse a batch of launches and acknowledge it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import uvloop

from hearth_proto.v1 import device_pb2

SERVICE = "bench.Echo"
CHUNK = 1 << 20
_CHUNKS: list[bytes] = []


def chunks(size: int) -> list[bytes]:
    """Returns `size` bytes in chunks of 1 MiB, each in separate memory, kept for later calls."""
    while len(_CHUNKS) * CHUNK < size:
        _CHUNKS.append(os.urandom(64) * (CHUNK // 64))
    return _CHUNKS[: size // CHUNK]


async def _echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for message in requests:
        yield message


async def _batches(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for message in requests:
        batch = device_pb2.ExecuteRequest.FromString(message).batch
        yield device_pb2.ExecuteResponse(ack=device_pb2.Ack(seq=batch.seq)).SerializeToString()


async def _up(requests: AsyncIterator[bytes], _: object) -> bytes:
    received = 0
    async for message in requests:
        received += len(message)
    return str(received).encode()


async def _down(request: bytes, _: object) -> AsyncIterator[bytes]:
    for chunk in chunks(int(request)):
        yield chunk


async def serve(socket: str) -> None:
    """Serves until the process is ended."""
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    methods = {
        "Echo": grpc.stream_stream_rpc_method_handler(_echo),
        "Batches": grpc.stream_stream_rpc_method_handler(_batches),
        "Up": grpc.stream_unary_rpc_method_handler(_up),
        "Down": grpc.unary_stream_rpc_method_handler(_down),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    print(f"ready {port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
