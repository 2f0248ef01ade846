"""A front whose clients have lanes, and its observable state."""

from __future__ import annotations

import asyncio
from typing import Any

from hearthd.front.sessions.channel import Channel
from tests.support.front.fake_lanes import LaneClient, LaneDevice, LaneLauncher
from tests.support.front.fixture import Front
from tests.support.front.resumed_streams import attach


def launcher() -> LaneLauncher:
    """Returns a launcher whose device processes accept lanes."""
    return LaneLauncher()


def device(f: Front) -> LaneDevice:
    """Returns the process of the front's first device."""
    fake_device = f.device()
    assert isinstance(fake_device, LaneDevice)
    return fake_device


def channel(f: Front) -> Channel:
    """Returns the channel of the only session to its first device."""
    [session] = f.daemon.sessions
    return session.channels[0]


def refusals(f: Front, reason: str) -> float:
    """Returns the number of lane connections refused for the reason."""
    return f.daemon.metrics.registry.get_sample_value("hearth_lane_refusals_total", {"reason": reason}) or 0.0


async def enter(f: Front) -> tuple[Any, LaneClient]:
    """Returns an attached stream and its live lane."""
    stream, attached = await attach(f)
    client = await LaneClient.live(attached.lane)
    assert channel(f).has_lane
    return stream, client


async def silent(stream: Any) -> None:
    """Checks that nothing arrives on the stream."""
    pending = asyncio.ensure_future(stream.read())
    done, _ = await asyncio.wait({pending}, timeout=0.05)
    assert not done, pending.result()
    stream.cancel()
    await asyncio.gather(pending, return_exceptions=True)
