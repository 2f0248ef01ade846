"""Execute streams that break and resume."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import grpc
import grpc.aio

from hearth_proto.reasons import Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front.sessions.resume_buffer import ResumeBuffer
from tests.support.front.fixture import Front, ended, until


async def attach(f: Front, **fields: Any) -> tuple[Any, device_pb2.Attached]:
    """Returns an Execute stream that is attached resumably, and the answer."""
    stream = f.devices.Execute()
    attach = device_pb2.Attach(session_token=f.token, **{"resumable": True, **fields})
    await stream.write(device_pb2.ExecuteRequest(attach=attach))
    try:
        answer = await stream.read()
    except grpc.aio.AioRpcError:
        raise await ended(stream) from None
    assert answer.WhichOneof("kind") == "attached", answer
    return stream, answer.attached


async def resume(f: Front, received: int, acked: int = 0, generation: int = 1) -> tuple[Any, device_pb2.Attached]:
    return await attach(f, resume=True, generation=generation, received=received, last_seq_acked=acked)


async def take(stream: Any, results: int) -> list[int]:
    """Returns the numbers of the next results; acks between them are skipped."""
    taken: list[int] = []
    while len(taken) < results:
        answer = await stream.read()
        assert answer is not grpc.aio.EOF
        if answer.WhichOneof("kind") == "result":
            taken.append(answer.result.request)
    return taken


async def over(stream: Any) -> Refusal:
    """Reads a stream until it ends; returns the refusal that ended it."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await stream.read() is not grpc.aio.EOF:
            pass
    return await ended(stream)


async def gone(f: Front) -> None:
    """Returns when the front has noticed the end of every Execute stream."""
    await until(lambda: not f.daemon.device_service.attachments)


def received(responses: int, **transfers: int) -> device_pb2.ExecuteRequest:
    progress = [device_pb2.TransferProgress(transfer=int(t[1:]), bytes=n) for t, n in transfers.items()]
    return device_pb2.ExecuteRequest(received=device_pb2.Received(responses=responses, transfers=progress))


def kept(f: Front) -> ResumeBuffer:
    [session] = f.daemon.sessions
    replies = session.channels[0].replies
    assert replies is not None
    return replies


def window(f: Front, **fields: int) -> None:
    """Sets the limits of streams that attach from now on."""
    limits = f.daemon.device_service.limits
    f.daemon.device_service.limits = dataclasses.replace(limits, window=dataclasses.replace(limits.window, **fields))
