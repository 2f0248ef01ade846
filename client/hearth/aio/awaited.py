"""Base class of objects that are entered by ``async with`` in `hearth.aio` and by ``with`` in `hearth`."""

from __future__ import annotations

from typing import NoReturn


class AsyncWith:
    """Mix-in that makes ``with`` raise an error which names ``async with``."""

    def __enter__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} of hearth.aio must be entered with `async with`")

    def __exit__(self, *_: object) -> None:
        """Does nothing; present because ``with`` looks up this method before it calls ``__enter__``."""
