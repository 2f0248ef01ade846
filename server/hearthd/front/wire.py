"""What is spoken with a device process, as channels and transfers see it; `link.py` does it over a socket."""

from __future__ import annotations

from typing import Protocol

from hearth_proto.v1 import commands_pb2


class Link(Protocol):
    """Frames to one device process."""

    generation: int

    @property
    def paused(self) -> bool:
        """Whether it takes no more bytes just now."""
        ...

    def send(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None: ...

    async def drain(self) -> None:
        """Returns when there is room to write; raises the loss when the device process is gone."""
        ...

    async def call(self, channel: int, command: commands_pb2.Command) -> commands_pb2.Result:
        """The device's answer to one command; raises `Refusal` where the device process is lost meanwhile."""
        ...
