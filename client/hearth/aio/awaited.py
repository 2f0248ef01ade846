"""Helpers of classes of `hearth.aio`: ``async with``, and attempts that are repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from hearth.arrays.published import backoff_within, pause_after
from hearth.errors import HearthError

T = TypeVar("T")


class AsyncWith:
    """Mix-in that makes ``with`` raise an error which names ``async with``."""

    def __enter__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} of hearth.aio must be entered with `async with`")

    def __exit__(self, *_: object) -> None:
        """Does nothing; present because ``with`` looks up this method before it calls ``__enter__``."""


async def until_published(wait: float, attach: Callable[[], Awaitable[T]]) -> T:
    """Attaches an array or an event, and waits until it is published; see `hearth.arrays.published.until_published`.

    Args:
        wait: Seconds to wait at most.
        attach: Attaches it; called again after `NOT_PUBLISHED`.

    Returns:
        The result of `attach`.
    """
    backoff = backoff_within(wait)
    while True:
        try:
            return await attach()
        except HearthError as error:
            await asyncio.sleep(pause_after(error, backoff))
