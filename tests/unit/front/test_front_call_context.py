"""A framed call whose client is gone, as its handler sees it."""

from __future__ import annotations

import asyncio

import pytest

from hearthd.front.call_context import FramedCall


@pytest.mark.parametrize("reading", [False, True], ids=["before", "while"])
def test_who_reads_hears_that_the_client_is_gone(reading: bool) -> None:
    """Also where the task's own cancellation was lost on the way."""

    async def scenario() -> None:
        call = FramedCall(lambda _call, _head: None, lambda _call: True)
        if not reading:
            call.connection_lost(None)
        reader = asyncio.create_task(call.read())
        await asyncio.sleep(0)
        if reading:
            assert not reader.done()
            call.connection_lost(None)
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(5):
                await reader
        assert reader.cancelled()

    asyncio.run(scenario())
