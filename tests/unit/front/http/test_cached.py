"""Single-flight cached responses."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from hearthd.front.http.cached import CachedResponse


def test_concurrent_callers_share_one_computation() -> None:
    async def scenario() -> None:
        now, found = [0.0], itertools.count()

        async def find() -> int:
            await asyncio.sleep(0)
            return next(found)

        answer = CachedResponse(find, lambda: now[0])
        assert await asyncio.gather(*(answer.get(1.0) for _ in range(50))) == [0] * 50
        now[0] = 0.9
        assert await answer.get(1.0) == 0 and await answer.get(0.5) == 1
        now[0] = 5.0
        gone = asyncio.ensure_future(answer.get(1.0))
        stays = asyncio.ensure_future(answer.get(1.0))
        await asyncio.sleep(0)
        gone.cancel()
        assert await stays == 2, "a cancelled caller does not cancel the computation for the others"
        answer.close()

    asyncio.run(scenario())


def test_failure_is_not_cached() -> None:
    async def scenario() -> None:
        outcomes = iter([OSError("no"), 7])

        async def find() -> int:
            outcome = next(outcomes)
            if isinstance(outcome, OSError):
                raise outcome
            return outcome

        answer = CachedResponse(find)
        with pytest.raises(OSError, match="no"):
            await answer.get(60.0)
        assert await answer.get(60.0) == 7

    asyncio.run(scenario())
