"""GET /traces/ID.json: a trace that was ended lately, as a file for Perfetto."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator

import structlog
from aiohttp import web

from hearthd.front.recent_traces import RecentTrace

log = structlog.get_logger("hearthd.http")

AT_ONCE = 2
"""Conversions; further downloads wait."""
PIECE = 256 << 10


class TraceDownload:
    """Converts in a process of its own, which ends with the request."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)

    async def answer(self, request: web.Request, trace: RecentTrace, title: str) -> web.StreamResponse:
        """The whole file, or that it could not be made."""
        response = web.StreamResponse(
            headers={
                "Content-Type": "application/json",
                "Content-Disposition": f'attachment; filename="hearth-device{trace.device}-{trace.id[:8]}.json"',
                "Vary": "Accept-Encoding",
            }
        )
        zipped = "gzip" in request.headers.get("Accept-Encoding", "")
        if zipped:
            response.headers["Content-Encoding"] = "gzip"
        if request.method == "HEAD":
            await response.prepare(request)
            return response
        async with self._places, _converter(title, trace.packed) as output:
            piece = await output.read(PIECE)
            if not piece:
                log.error("trace_conversion", trace=trace.id, device=trace.device)
                body = {"error": "The trace could not be converted.", "fix": "Look at the daemon's log."}
                return web.json_response(body, status=500)
            unzip = zlib.decompressobj(wbits=31)
            await response.prepare(request)
            while piece:
                await response.write(piece if zipped else unzip.decompress(piece))
                piece = await output.read(PIECE)
        await response.write_eof()
        return response


@contextlib.asynccontextmanager
async def _converter(title: str, packed: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """Its output. It has ended when this ends, whatever it was doing."""
    starting = asyncio.create_task(asyncio.to_thread(_start, title, packed))
    try:
        process = await asyncio.shield(starting)
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), process.stdout
        )
        try:
            yield output
        finally:
            pipe.close()
    finally:
        process = await starting  # also where the request was given up meanwhile
        process.kill()
        await asyncio.to_thread(process.wait)


def _start(title: str, packed: bytes) -> subprocess.Popen[bytes]:
    """By way of vfork, which `Popen` uses and uvloop does not: a copy of this process, even for the moment until it
    becomes another program, runs the handlers for forks of gRPC, which crash in it when other threads are within gRPC.
    """
    with os.fdopen(os.memfd_create("hearth-trace"), "w+b") as file:
        file.write(packed)
        file.seek(0)
        command = [sys.executable, "-m", "hearthd.front.http.trace_file", title]
        return subprocess.Popen(command, stdin=file, stdout=subprocess.PIPE)
