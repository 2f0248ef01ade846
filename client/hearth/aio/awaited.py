"""Objects that are entered by ``async with`` here, and by ``with`` in the other client."""

from __future__ import annotations

from typing import NoReturn


class AsyncWith:
    """Refuses ``with``, naming ``async with``."""

    def __enter__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} of hearth.aio is entered by `async with`")

    def __exit__(self, *_: object) -> None:
        """Present because ``with`` checks for it before it enters."""
