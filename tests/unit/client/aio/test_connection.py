"""The connection to a device for an event loop, while the daemon does not answer."""

from __future__ import annotations

import asyncio
import time

import pytest

import hearth
from hearth import aio
from hearth.errors import broken
from tests.support.client.fake_daemon import FakeDaemon
from tests.support.client.internals import connection_of
from tests.support.timing import LATE


def test_timeout_of_an_awaited_call_includes_the_attach() -> None:
    daemon = FakeDaemon()

    async def main() -> None:
        async with aio.connect(daemon.target, timeout=2 * LATE) as node:
            gpu = node.device(0)
            x, stream = gpu.zeros(2), gpu.stream()
            await gpu.synchronize()
            daemon.silent = True
            connection_of(gpu).attachment().end(broken("lost."))
            for call in (gpu.synchronize, gpu.flush, node.synchronize, x.get, stream.synchronize):
                began = time.monotonic()
                with pytest.raises(hearth.TimeoutError, match=r"within 0\.2 s"):
                    await call(timeout=0.2)
                assert 0.15 < time.monotonic() - began < LATE
            daemon.stop()

    asyncio.run(main())
