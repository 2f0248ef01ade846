"""GET /traces/ID.json: a trace that was ended lately, as a file for Perfetto."""

from __future__ import annotations

import asyncio
import contextlib
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
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hearthd.front.trace_file", title,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        with contextlib.suppress(ConnectionError):  # it has ended already: its output says so, too
            process.stdin.write(packed)
            await process.stdin.drain()
        process.stdin.close()
        yield process.stdout
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
