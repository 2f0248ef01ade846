"""Connections with a short timeout, to daemons that refuse them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hearth

TIMEOUTS_S = (0.5, 5.0, 20.0)


def refusal_of_connect(connect: Callable[[float], hearth.Node]) -> hearth.HearthError:
    """Returns the error of `connect(timeout)`, which the daemon must refuse.

    The client repeats refused attempts until the timeout, so the first timeout is short. Longer ones follow if no
    answer arrived within it.
    """
    for timeout in TIMEOUTS_S:
        with pytest.raises(hearth.HearthError) as caught:
            connect(timeout)
        if caught.value.reason != "DEVICE_UNAVAILABLE":
            break
    return caught.value
