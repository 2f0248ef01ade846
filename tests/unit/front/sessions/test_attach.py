"""Attachments that begin or are resumed while their channel ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2
from hearthd.front.sessions import attach
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.lane import LaneMirror
from hearthd.front.sessions.session_table import SessionTable
from tests.support.front.fixture import run


class Link:
    """A link whose device process has not answered yet."""

    ordinal, generation = 0, 1

    def __init__(self) -> None:
        self.lane_ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def send(self, kind: Kind, payload: bytes = b"", **fields: int) -> None: ...

    def close_channel(self, channel: int) -> None: ...

    async def ask(self, kind: Kind, body: dict[str, Any], channel: int = 0) -> dict[str, int]:
        return {"last": await self.lane_ended}


@pytest.mark.parametrize("resume", [False, True])
def test_channel_that_ends_while_its_lane_is_ended_is_not_attached_to(resume: bool) -> None:
    async def scenario() -> None:
        window, refusal = attach.ExecuteWindow(), Refusal(Reason.DEVICE_NOT_FOUND, "taken from the tenant")
        session, _ = SessionTable().open("test", "0")
        link: Any = Link()
        channel = session.channels[0] = Channel(link, 1, session.id, session.tenant.name, session.queue)
        channel.replies = window.create_resume_buffer()
        channel.lane = LaneMirror(link, 1, channel.batches, channel.replies)
        request = device_pb2.Attach(generation=1, resume=True)
        coroutine: Any = (
            attach.resume_channel(session, request) if resume else attach.begin(session, 0, channel, True, window)
        )
        attaching = asyncio.create_task(coroutine)
        await asyncio.sleep(0)
        assert not attaching.done()
        del session.channels[0]
        closing = asyncio.create_task(channel.close(refusal))
        await asyncio.sleep(0)
        link.lane_ended.set_result(0)
        with pytest.raises(Refusal) as caught:
            await attaching
        assert caught.value is refusal
        channel.on_closed()
        await closing

    run(scenario())
