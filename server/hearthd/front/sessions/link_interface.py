"""The connection with one device process, as sessions use it; `hearthd.front.links.link` implements it over a
socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hearth_proto.frames import Frame, Kind
from hearth_proto.v1 import commands_pb2


class ChannelRef(Protocol):
    """A session's channel on a link, as others see it."""

    session_id: str


class Link(Protocol):
    """Frames to one device process."""

    ordinal: int
    """The device's number on this node."""
    generation: int
    device_memory: int
    """Bytes that sessions may have of the device; 0: not known yet."""

    @property
    def channels(self) -> Mapping[int, ChannelRef]:
        """The open channels, by number."""
        ...

    def listen(self, kind: Kind, listener: Callable[[Frame], None]) -> None:
        """Calls `listener` with each frame of this kind that answers no question."""
        ...

    @property
    def paused(self) -> bool:
        """True while it takes no more bytes."""
        ...

    def send(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None: ...

    async def drain(self) -> None:
        """Returns when there is room to write; raises the loss when the device process is gone."""
        ...

    @property
    def takes_lanes(self) -> bool:
        """True if a client's connection can be handed to it."""
        ...

    def give_lane(self, channel: int, bounds: dict[str, int], connection: int) -> None:
        """Hands a client's connection over. Raises OSError where that cannot be done just now."""
        ...

    def give(self, kind: str, body: dict[str, Any], connection: int) -> None:
        """Hands a client's connection over as what `kind` says. Raises OSError where that cannot be done just now."""
        ...

    def leave(self, channel: int) -> None:
        """The channel is closed: all that its session has there is to be given back."""
        ...

    async def end_lane(self, channel: int) -> int:
        """The last batch that it has of the channel, its lane being closed and all copies before; raises the loss."""
        ...

    async def call(self, channel: int, command: commands_pb2.Command) -> commands_pb2.Result:
        """The device's answer to one command; raises `Refusal` where the device process is lost meanwhile."""
        ...
