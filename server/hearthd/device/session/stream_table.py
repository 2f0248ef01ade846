"""Table of a session's streams, which lists their tracks, failures and collectives without a walk over all streams."""

from __future__ import annotations

from typing import Any

from hearthd.device.session.handle_table import HandleTable
from hearthd.device.session.replay_cache import ReplayCache
from hearthd.device.session.stream import LogicalStream
from hearthd.device.streams.stream_pool import PooledStream


class StreamTable(HandleTable[LogicalStream]):
    """Table of streams. Many streams share few tracks, and few streams have unreported failures or collectives."""

    def __init__(self, replay_cache: ReplayCache[Any]) -> None:
        super().__init__("stream", replay_cache)
        self.users: dict[PooledStream, int] = {}
        """Number of streams on each track. A destroyed stream counts until `leave`."""
        self._tracks: list[PooledStream] | None = None
        self._marked: dict[LogicalStream, None] = {}

    def put(self, handle: int, stream: LogicalStream) -> None:
        """Adds a new stream."""
        self.items[handle] = stream
        stream.marked = self._marked
        users = self.users.get(stream.track, 0)
        self.users[stream.track] = users + 1
        if not users:
            self._tracks = None

    def leave(self, stream: LogicalStream) -> None:
        """Removes the track of a stream that `pop` has removed, unless another stream of the session uses it.

        Called when no command of the stream waits any more.
        """
        track = stream.track
        self.users[track] -= 1
        if not self.users[track]:
            del self.users[track]
            self._tracks = None

    @property
    def tracks(self) -> list[PooledStream]:
        """Tracks of the streams, each once, with those that `leave` has not removed yet.

        The caller must not change the list.
        """
        if self._tracks is None:
            self._tracks = list(self.users)
        return self._tracks

    @property
    def marked(self) -> list[LogicalStream]:
        """Streams with unreported failures or with collectives, including streams whose handle was destroyed."""
        if not self._marked:
            return []
        marked = [stream for stream in self._marked if stream.errors or stream.collectives or stream.flights]
        if len(marked) < len(self._marked):
            self._marked.clear()
            self._marked.update(dict.fromkeys(marked))
        return marked

    @property
    def collectives(self) -> list[PooledStream]:
        """Communicators' tracks with work of live streams, each once."""
        if not self._marked:
            return []
        tracks: dict[PooledStream, None] = {}
        for stream in self.marked:
            if stream.collectives and self.items.get(stream.handle) is stream:
                tracks.update(dict.fromkeys(stream.collectives))
        return list(tracks)
