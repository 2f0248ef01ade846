"""GET /traces/ID.json: a recent trace as a file for Perfetto."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import BinaryIO

import structlog
from aiohttp import web

from hearthd.front.http.connection import PIECE_BYTES, Connection
from hearthd.front.sessions.recent_traces import RecentTrace
from hearthd.front.tenancy.tenants import Tenant

log = structlog.get_logger("hearthd.http")

MAX_CONVERSIONS = 2
"""Maximum number of concurrent conversions; further downloads wait."""
MAX_DOWNLOADS = 2
"""Maximum number of concurrent downloads of one tenant; further ones are refused."""
MAX_FILE_BYTES = 256 << 20
"""Maximum size of a compressed file in bytes. A trace of the size that is kept results in a much smaller file."""


class TraceDownload:
    """Converts a trace in a separate process, which ends with the request.

    The file is complete, in memory outside of this process's heap, before its first byte is sent. A client that reads
    slowly therefore does not block other conversions.
    """

    def __init__(self) -> None:
        self._conversion_slots = asyncio.Semaphore(MAX_CONVERSIONS)
        self.under_way: Counter[str] = Counter()
        """Number of downloads under way, by tenant."""

    async def answer(
        self, request: web.Request, trace: RecentTrace, title: str, connection: Connection, viewer: Tenant
    ) -> web.StreamResponse:
        """Sends the whole file, or returns an error response.

        Raises `ConnectionError` if the client does not read the file.
        """
        if self.under_way[viewer.name] >= MAX_DOWNLOADS:
            body = {
                "error": f"{MAX_DOWNLOADS} downloads of this tenant are in progress.",
                "fix": "Wait until one has completed.",
            }
            return web.json_response(body, status=429, headers={"Retry-After": "5"})
        self.under_way[viewer.name] += 1
        try:
            return await self._answer(request, trace, title, connection)
        finally:
            self.under_way[viewer.name] -= 1
            if not self.under_way[viewer.name]:
                del self.under_way[viewer.name]

    async def _answer(
        self, request: web.Request, trace: RecentTrace, title: str, connection: Connection
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/json",
                "Content-Disposition": f'attachment; filename="hearth-device{trace.device}-{trace.id[:8]}.json"',
                "Vary": "Accept-Encoding",
            }
        )
        is_compressed = "gzip" in request.headers.get("Accept-Encoding", "")
        if is_compressed:
            response.headers["Content-Encoding"] = "gzip"
        if request.method == "HEAD":
            return response
        with os.fdopen(os.memfd_create("hearth-trace-file"), "w+b", buffering=0) as file:
            async with self._conversion_slots:
                size = await _convert(title, trace.packed, file)
            if not size:
                log.error("trace_conversion", trace=trace.id, device=trace.device)
                body = {"error": "The trace could not be converted.", "fix": "See the daemon's log."}
                return web.json_response(body, status=500)
            await response.prepare(request)
            try:
                for piece in _pieces(file) if is_compressed else _decompressed(_pieces(file)):
                    async with connection.piece():
                        await response.write(piece)
            except zlib.error as error:  # too late for an error response
                log.error("trace_conversion", trace=trace.id, device=trace.device, why=str(error))
                connection.displace()
                raise ConnectionResetError("the file is broken") from None
        return response


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece


def _decompressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the decompressed pieces. Each has at most `PIECE_BYTES` bytes, however well it was compressed."""
    decompressor = zlib.decompressobj(wbits=31)
    for piece in pieces:
        compressed = piece
        while compressed:
            if plain := decompressor.decompress(compressed, PIECE_BYTES):
                yield plain
            compressed = decompressor.unconsumed_tail
    if plain := decompressor.flush():
        yield plain


async def _convert(title: str, packed: bytes, file: BinaryIO) -> int:
    """Writes the compressed file. Returns its size in bytes; 0 if the conversion failed."""
    size = 0
    async with _converter(title, packed) as output:
        while piece := await output.read(PIECE_BYTES):
            size += len(piece)
            if size > MAX_FILE_BYTES:
                return 0
            file.write(piece)
    return size


@contextlib.asynccontextmanager
async def _converter(title: str, packed: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Yields the converter's output. The process has ended when the context ends, whatever it was doing."""
    start = asyncio.create_task(asyncio.to_thread(_start, title, packed))
    try:
        process = await asyncio.shield(start)
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), process.stdout
        )
        try:
            yield output
        finally:
            pipe.close()
    finally:
        process = await start  # also if the request was cancelled meanwhile
        process.kill()
        await asyncio.to_thread(process.wait)


def _start(title: str, packed: bytes) -> subprocess.Popen[bytes]:
    """Starts the process through vfork, which `Popen` uses and uvloop does not.

    A forked copy of this process, even if it immediately executes another program, runs gRPC's fork handlers, which
    crash if other threads are inside gRPC.
    """
    with os.fdopen(os.memfd_create("hearth-trace"), "w+b") as file:
        file.write(packed)
        file.seek(0)
        command = [sys.executable, "-m", "hearthd.front.http.trace_file", title]
        return subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE)
