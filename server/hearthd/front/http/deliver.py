"""Delivery of answers: in pieces, each with a deadline, so that a client that does not read costs one piece."""

from __future__ import annotations

from aiohttp import web

from hearthd.front.http.connection import PIECE, Connection


async def deliver(request: web.Request, response: web.StreamResponse, connection: Connection) -> web.StreamResponse:
    """Sends the rest of an answer; returns what aiohttp is to take for it. The next request is read afterwards."""
    try:
        if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > PIECE:
            response = await _in_pieces(request, response, response.body, connection)
        async with connection.piece():
            await response.prepare(request)
            await response.write_eof()
    except ConnectionError:  # cut, here or by the client
        response.force_close()
        return response
    connection.answered(last=not response.keep_alive)
    return response


async def _in_pieces(
    request: web.Request, whole: web.Response, body: bytes, connection: Connection
) -> web.StreamResponse:
    response = web.StreamResponse(status=whole.status, reason=whole.reason, headers=whole.headers)
    response.content_length = len(body)
    await response.prepare(request)
    if request.method != "HEAD":
        for begin in range(0, len(body), PIECE):
            async with connection.piece():
                await response.write(body[begin : begin + PIECE])
    return response
