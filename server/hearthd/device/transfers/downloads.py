"""Downloads: reads whose bytes are sent outside the batch, chunk by chunk, as the client's credit allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.chunks import download_head
from hearth_proto.frames import Flag, Frame
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.transfer import DownloadFlow
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.chunk_memory import ChunkSlot, DownloadChunkMemory
from hearthd.device.transfers.shared import SharedTransfers
from hearthd.device.transfers.state import TransferContext, claim, closed_early
from hearthd.device.transfers.striped import StripedTransfers

LAST = int(Flag.LAST)

Chunk = Callable[[ChunkSlot | bytes, int], None]
"""Sends the next chunk of a transfer: its slot or bytes, and its size in bytes."""


class Downloads:
    """Downloads of one device process. `chunks` is the memory shared with the front. Device-handle thread only."""

    def __init__(
        self,
        context: TransferContext,
        shared: SharedTransfers,
        striped: StripedTransfers,
        chunks: DownloadChunkMemory,
    ) -> None:
        self._context = context
        self._device = context.device
        self._shared = shared
        self._striped = striped
        self._chunks = chunks

    def frame(self, session: DeviceSession, frame: Frame) -> None:
        """Opens a download after the front announced a client that waits for its chunks."""
        if frame.id in session.over:
            self._context.abort(session, frame.id, Refusal(Reason.TRANSFER_ABORTED, f"transfer {frame.id} has ended"))
            return
        download = session.downloads.setdefault(frame.id, DownloadFlow(frame.id))
        download.end_bulk()  # the client now receives the bytes over Download
        download.streamed = True
        download.credits += frame.flags
        self._chunks.want()
        self._device.kick(session)

    def credit(self, session: DeviceSession, frame: Frame) -> None:
        """Adds the client's credit of `frame.flags` chunks to the download, if it has not ended."""
        download = session.downloads.get(frame.id)
        if download is not None:
            download.credits += frame.flags
            self._device.kick(session)

    def read(self, copy: BufferCopy, command: commands_pb2.Read) -> Operation:
        """Returns the operation of a Read with a transfer number.

        Claims the download for it, and raises Refusal as `claim` does.
        """
        origin, size = copy.origin, copy.rows.size
        download = claim(origin.session, command.transfer, DownloadFlow, "read")
        download.sent = lambda: origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(size=size)))
        operation = Operation(
            origin, partial(self._read, download, copy), writes=(origin.stream,), reads=(copy.buffer,)
        )
        operation.on_failure = partial(self._context.abort, origin.session, command.transfer)
        return operation

    def _read(self, download: DownloadFlow, copy: BufferCopy) -> bool:
        if download.refused:
            return True
        if download.submitted == 0 and copy.refused():
            refusal = Refusal(Reason.DEPENDENCY_FAILED, "the read failed")
            self._context.abort(copy.origin.session, download.number, refusal)
            return True
        copy.locate("read")
        return self.send(download, copy)

    def send(self, download: DownloadFlow, copy: BufferCopy) -> bool:
        """Submits the copies of as many chunks as the client has credit for, in the order of the stream.

        Returns True once all chunks are submitted.

        A chunk is sent when its copy is done; a Read is answered after the last chunk. A failure of the buffer that
        becomes known meanwhile ends a Read. Raises Refusal(TRANSFER_ABORTED) if the client has closed the download.
        """
        if download.location is not None:
            return self._shared.send(download, download.location, copy)
        if download.striped is not None:
            return self._striped.send(download, download.striped, copy)
        origin, size = copy.origin, copy.rows.size
        session, track = origin.session, origin.stream.track
        while download.submitted < size or not size:
            if download.aborted:
                raise closed_early(origin)
            if not download.streamed or not download.credits or track.full:
                return False
            at, chunk_size = download.submitted, min(self._device.spec.chunk_bytes, size - download.submitted)
            last = at + chunk_size == size
            chunk = partial(self._chunk, origin, download, at, last)
            host = (None if copy.waits else self._chunks.reserve(chunk_size)) or copy.find(max(chunk_size, 1))
            if host is not None:
                if chunk_size:
                    self._copy_to_host(copy, host, at, chunk_size)
                arrived = partial(self._arrived, host, chunk_size, chunk)
                self._context.when_arrived(download, copy, host, self._release, arrived)
            else:
                data = copy.get_now(at, chunk_size) if copy.without(max(chunk_size, 1)) else None
                if data is None:
                    return False
                chunk(self._copied(data), chunk_size)
            download.credits -= 1
            download.submitted += chunk_size
            if last:
                break
        session.downloads.pop(download.number, None)
        self._device.telemetry.download_chunks_bytes += size
        return True

    def _copy_to_host(self, copy: BufferCopy, host: HostBuffer, at: int, size: int) -> None:
        try:
            copy.download(host, 0, at, size)
        except Exception:  # freed after the part that the driver has accepted
            self._device.tracks.on_complete(copy.origin.stream.track, partial(self._release, host))
            raise

    def _release(self, host: HostBuffer) -> None:
        """Frees host memory whose contents are not sent."""
        if isinstance(host, ChunkSlot):
            self._chunks.drop(host)
        else:
            self._device.staging.release(host)

    def _arrived(self, host: HostBuffer, size: int, chunk: Chunk) -> None:
        data: ChunkSlot | bytes
        if isinstance(host, ChunkSlot):
            self._chunks.send(host)
            data = host
        else:
            data = self._copied(host.view[:size])  # copied, so that the staging memory is free for the next chunk
            self._device.staging.release(host)
        chunk(data, size)

    def _copied(self, data: memoryview | bytes) -> ChunkSlot | bytes:
        """Copies data to a slot that is passed to the front, or to new memory if no slot is free."""
        slot = self._chunks.fill(data)
        return bytes(data) if slot is None else slot

    def _chunk(
        self,
        origin: Origin,
        download: DownloadFlow,
        offset: int,
        last: bool,
        data: ChunkSlot | bytes,
        size: int,
    ) -> None:
        outbox, channel, head = self._device.outbox, origin.session.channel, download_head(offset, size)
        flags = LAST if last else 0
        if isinstance(data, ChunkSlot):
            outbox.put_slot(data.number, size, head, channel=channel, id=download.number, flags=flags)
        else:
            outbox.put_chunk(head, data, channel=channel, id=download.number, flags=flags)
        if last and download.sent is not None:
            download.sent()
