"""Batches on an Execute stream of a whole front."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from hearth_proto.v1 import commands_pb2, device_pb2
from tests.support.front.fixture import Front


def batch(seq: int, requests: int = 0, padding: int = 0) -> device_pb2.ExecuteRequest:
    commands = [commands_pb2.Command(request=seq, sync=commands_pb2.Sync()) for _ in range(requests)]
    if padding:
        commands.append(commands_pb2.Command(launches=b"x" * padding))
    return device_pb2.ExecuteRequest(batch=commands_pb2.Batch(seq=seq, commands=commands))


async def read_until(stream: Any, acked: int, results: int = 0) -> tuple[int, int, int]:
    """Reads until batch `acked` is acknowledged and `results` results have arrived; returns the numbers of acks and
    results, and the last ack."""
    acks = got = last = 0
    while last < acked or got < results:
        answer = await stream.read()
        assert answer is not grpc.aio.EOF
        if answer.WhichOneof("kind") == "ack":
            acks, last = acks + 1, answer.ack.seq
        else:
            got += 1
    return acks, got, last


async def device_settles(f: Front) -> None:
    """Returns when the device process has handled everything that the front had sent before: frames keep their
    order."""
    link = f.daemon.supervisor.find(0).running[0].link
    assert link is not None
    for _ in range(20):
        await link.ping()
