"""Cutting the lane of a client."""

from __future__ import annotations

import hearth
from tests.support.client.internals import connection_of


def cut(gpu: hearth.Device) -> None:
    """Closes the device's lane, if it has one at the moment."""
    channel = connection_of(gpu).attachment().channel
    if channel is not None:
        channel.lane.close()
