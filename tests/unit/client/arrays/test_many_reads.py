"""Reads of several arrays: the errors of a call that ends before all reads are answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hearth
from hearth_proto import reasons
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import handle_of


class SilentDaemon(FakeDaemon):
    """A daemon that answers no read of the buffer `silent`."""

    silent = 0

    def do_read(self, command: Any, message: Any, result: Any) -> None:
        if message.buffer == self.silent:
            self.never_answer.add("read")
        super().do_read(command, message, result)


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    daemon = SilentDaemon()
    yield daemon
    daemon.stop()


def test_timeout_of_one_array_does_not_lose_the_failure_of_earlier_work(
    gpu: hearth.Device, daemon: SilentDaemon
) -> None:
    x, y = gpu.zeros(8, np.int32), gpu.zeros(8, np.int32)
    gpu.synchronize()
    daemon.silent = handle_of(y)
    daemon.fail_next["fill"] = reasons.Refusal(reasons.Reason.LAUNCH_FAILED, "the fill failed.")
    x.fill(1)
    with pytest.raises(hearth.TimeoutError):
        gpu.get([x, y], timeout=1.0)
    with pytest.raises(hearth.HearthError, match="the fill failed"):
        gpu.synchronize()
    gpu.synchronize()
