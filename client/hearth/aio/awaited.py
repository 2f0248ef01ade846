"""For what is entered by ``async with`` here, and by ``with`` in the other client."""

from __future__ import annotations

from typing import NoReturn


class AsyncWith:
    """Says so to who writes ``with``."""

    def _refuse_with(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} of hearth.aio is entered by `async with`")
