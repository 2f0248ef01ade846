"""Open files that device processes send over the socket that accompanies their link.

Each file is sent together with the answer that announces it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from functools import partial
from typing import Any

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.links.link import DeviceLink

FILE_TIMEOUT = 10.0
"""Time limit, in seconds, for a file to arrive after the answer that announces it, because the file uses another
socket."""


class ExportedFiles:
    """The files that arrive in messages of one kind."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._numbers = itertools.count(1)
        self._arriving: dict[tuple[DeviceLink, int], asyncio.Future[int]] = {}

    def next_number(self) -> int:
        """Returns a number for the next file, in either direction."""
        return next(self._numbers)

    def watch(self, link: DeviceLink) -> None:
        """Registers for the files of this device process."""
        if link.descriptors is not None:
            link.descriptors.on(self._kind, partial(self._on_file, link))

    async def ask(
        self, link: DeviceLink, body: dict[str, Any], channel: int, subject: str
    ) -> tuple[dict[str, Any], int]:
        """Sends an EXPORT request.

        Returns its answer and the file, which the caller must close. Raises the refusal in the answer, the loss of
        the device process, or INTERNAL if the file of `what` does not arrive.
        """
        number = self.next_number()
        arriving: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._arriving[link, number] = arriving
        try:
            answer = await link.ask(Kind.EXPORT, {**body, "file": number}, channel)
            await asyncio.wait({arriving}, timeout=FILE_TIMEOUT)
        except BaseException:
            if arriving.done():
                os.close(arriving.result())
            raise
        finally:
            del self._arriving[link, number]
        if not arriving.done():
            raise link.loss or Refusal(
                Reason.INTERNAL, f"the memory of {subject} did not arrive", fix="report it with the log"
            )
        return answer, arriving.result()

    def _on_file(self, link: DeviceLink, body: dict[str, Any], files: list[int]) -> None:
        arriving = self._arriving.get((link, body.get("file", 0)))
        if arriving is not None and not arriving.done() and len(files) == 1:
            arriving.set_result(files[0])
            return
        for file in files:
            os.close(file)
