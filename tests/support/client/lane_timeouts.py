"""Longer timeouts for the connections that a client opens in addition to its session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest

from hearth.session.timing import TIMING
from hearth.transfer import shared_memory
from hearth.transport import base
from hearth.transport.lane import open_lane
from hearth.transport.segments import open_segments

OPEN_S = 60.0
"""Timeout, in seconds, for a lane or a segment connection to go live."""
HOLD_S = 5.0
"""Seconds for which work is held back until a lane may be opened."""


@contextlib.contextmanager
def long_timeouts() -> Iterator[None]:
    """Makes the clients of this process wait for lanes and segment connections even if the machine is busy. Otherwise
    they would use the slower path after one or two seconds, and a test of the faster path would fail."""
    with pytest.MonkeyPatch.context() as patch:  # a test may undo the changes of the `monkeypatch` fixture
        patch.setattr(base, "open_lane", partial(open_lane, seconds=OPEN_S))
        patch.setattr(shared_memory, "open_segments", partial(open_segments, seconds=OPEN_S))
        patch.setattr(TIMING, "lane_hold", HOLD_S)
        yield
