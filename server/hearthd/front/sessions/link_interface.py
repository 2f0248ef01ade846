"""The interface of the connection with one device process, as sessions use it.

`hearthd.front.links.link` implements it over a socket.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hearth_proto.frames import Frame, Kind
from hearth_proto.v1 import commands_pb2


class ChannelRef(Protocol):
    """A session's channel on a link, as other sessions see it."""

    session_id: str


class Link(Protocol):
    """A connection that carries frames to one device process."""

    ordinal: int
    """The ordinal of the device on this node."""
    generation: int
    device_memory: int
    """Bytes of device memory that sessions may use. 0: not known yet."""

    @property
    def channels(self) -> Mapping[int, ChannelRef]:
        """The open channels, by number."""
        ...

    def listen(self, kind: Kind, listener: Callable[[Frame], None]) -> None:
        """Calls `listener` with each frame of this kind that is not the answer to a call."""
        ...

    @property
    def paused(self) -> bool:
        """True while the link accepts no more bytes."""
        ...

    def send(self, kind: int, payload: bytes = b"", *, channel: int = 0, id: int = 0, flags: int = 0) -> None:
        """Writes one frame without waiting. Does nothing after the link was closed."""
        ...

    async def drain(self) -> None:
        """Returns when there is room to write. Raises the loss if the device process is gone."""
        ...

    @property
    def takes_lanes(self) -> bool:
        """True if a client's connection can be handed to the device process."""
        ...

    def give(self, kind: str, body: dict[str, Any], descriptor: int) -> None:
        """Hands over a client's connection or an open file, for the purpose named by `kind`.

        Raises OSError if that is not possible at the moment.
        """
        ...

    def close_channel(self, channel: int) -> None:
        """Closes the channel: the device process frees everything that its session holds there."""
        ...

    async def ask(self, kind: Kind, body: dict[str, Any], channel: int = 0) -> dict[str, Any]:
        """Sends one frame, and returns the JSON that the device process answers.

        Raises the refusal in the answer, or the loss.
        """
        ...

    async def call(self, channel: int, command: commands_pb2.Command) -> commands_pb2.Result:
        """Returns the device's answer to one command.

        Raises `Refusal` if the device process is lost before it answers.
        """
        ...
