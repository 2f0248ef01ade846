"""Cutting the lane of a client."""

from __future__ import annotations

import hearth


def cut(gpu: hearth.Device) -> None:
    """Breaks the device's lane, if it has one just now."""
    carried = gpu._connection.attachment()._channel
    if carried is not None:
        carried._lane.close()
