"""Downloads: reads whose bytes are sent outside the batch, chunk by chunk, as the client's credit allows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.chunks import download_head
from hearth_proto.frames import Flag, Frame
from hearth_proto.layouts import RowLayout
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.transfer import DownloadFlow
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.pending_outcomes import both
from hearthd.device.transfers.chunk_memory import ChunkSlot, DownloadChunkMemory
from hearthd.device.transfers.layout import pieces
from hearthd.device.transfers.shared import SharedDownloads
from hearthd.device.transfers.staged import DirectCopies, locate, refused_read
from hearthd.device.transfers.state import ChunkCopy, TransferContext, check_live, claim
from hearthd.device.transfers.striped_downloads import StripedDownloads

LAST = int(Flag.LAST)

Chunk = Callable[[ChunkSlot | bytes, int], None]
"""Sends the next chunk of a transfer: its slot or bytes, and its size in bytes."""


class Downloads:
    """Downloads of one device process. `chunks` is the memory shared with the front. Device-handle thread only."""

    def __init__(self, context: TransferContext, chunks: DownloadChunkMemory) -> None:
        self._context = context
        self._device = context.device
        self.chunks = chunks
        self.striped = StripedDownloads(context)
        self.shared = SharedDownloads(context.device)

    def frame(self, session: DeviceSession, frame: Frame) -> None:
        """Opens a download after the front announced a client that waits for its chunks."""
        if frame.id in session.over:
            self._context.abort(session, frame.id, Refusal(Reason.TRANSFER_ABORTED, f"transfer {frame.id} has ended"))
            return
        download = session.downloads.setdefault(frame.id, DownloadFlow())
        download.unstripe()  # the client now receives the bytes over Download
        download.open = True
        download.credits += frame.flags
        self.chunks.want()
        self._device.kick(session)

    def credit(self, session: DeviceSession, frame: Frame) -> None:
        """Adds the client's credit of `frame.flags` chunks to the download, if it has not ended."""
        download = session.downloads.get(frame.id)
        if download is not None:
            download.credits += frame.flags
            self._device.kick(session)

    def aborted(self, session: DeviceSession, transfer: int, download: DownloadFlow) -> None:
        """Ends a download whose client side failed; its Read, waiting or later, is refused."""
        download.aborted = True
        if not download.claimed:  # a later command for this transfer is refused
            del session.downloads[transfer]
            session.over.add(transfer)
            download.unstripe()
        self._device.kick(session)

    def promise(self, session: DeviceSession, transfer: int, command: str) -> DownloadFlow:
        """Returns the download with this number, claimed for a command of the kind `command`, for example "read".

        Raises Refusal as `Uploads.expect` does.
        """
        check_live(session, transfer, session.uploads)
        download = session.downloads.setdefault(transfer, DownloadFlow())
        claim(download, transfer, command)
        return download

    def read(self, origin: Origin, command: commands_pb2.Read, buffer: Buffer, rows: RowLayout) -> Operation:
        """Returns the operation of a Read with a transfer number.

        Claims the download for it, and raises Refusal as `promise` does.
        """
        session = origin.session
        download = self.promise(session, command.transfer, "read")
        operation = Operation(
            origin,
            partial(
                self._read, origin, command, buffer, download, DirectCopies(self._device, origin, buffer, rows), rows
            ),
            writes=(origin.stream,),
            reads=(buffer,),
        )
        operation.on_failure = partial(self._context.abort, session, command.transfer)
        return operation

    def _read(
        self,
        origin: Origin,
        command: commands_pb2.Read,
        buffer: Buffer,
        download: DownloadFlow,
        direct: DirectCopies,
        rows: RowLayout,
    ) -> bool:
        session = origin.session
        if download.refused:
            return True
        if download.queued == 0 and refused_read(origin, buffer):
            self._context.abort(session, command.transfer, Refusal(Reason.DEPENDENCY_FAILED, "the read failed"))
            return True
        direct.address = address = locate(buffer, rows, "read")

        def copy_chunk(host: HostBuffer, at: int, size: int) -> None:
            self._context.copies.download(origin, buffer, address, host, size, pieces(rows, at, size))

        def sent() -> None:
            origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(size=command.size)))

        return self.send(origin, command.transfer, download, command.size, copy_chunk, sent, direct, buffer)

    def send(
        self,
        origin: Origin,
        transfer: int,
        download: DownloadFlow,
        size: int,
        copy_chunk: ChunkCopy,
        sent: Callable[[], None] = lambda: None,
        direct: DirectCopies | None = None,
        buffer: Buffer | None = None,
    ) -> bool:
        """Calls `copy_chunk` to copy as many chunks as the client has credit for, in the order of the stream.

        Returns True once all chunks are submitted.

        A chunk is sent when its copy is done; `sent` is called after the last chunk. `direct` is used if there is no
        staging memory. A failure of `buffer` that becomes known meanwhile ends the read. Raises
        Refusal(TRANSFER_ABORTED) if the client has closed the download.
        """
        if download.location is not None:
            location = download.location
            return self.shared.send(origin, transfer, download, location, size, copy_chunk, sent, direct, buffer)
        striped, track = download.striped, origin.stream.track
        if striped is not None:
            if not self.striped.send(origin, transfer, download, striped, size, copy_chunk, direct, buffer):
                return False
            origin.session.downloads.pop(transfer, None)
            origin.session.over.add(transfer)  # a stripe may still announce the transfer
            download.unstripe()
            self._device.telemetry.download_stripes_bytes += size
            sent()
            return True
        while download.queued < size or not size:
            if download.aborted:
                raise Refusal(
                    Reason.TRANSFER_ABORTED,
                    "the download was closed before its last byte",
                    fix=f"{origin.name.partition(' ')[0]} again",
                )
            if not download.open or not download.credits or track.full:
                return False
            at, chunk_size = download.queued, min(self._device.spec.chunk_bytes, size - download.queued)
            last = at + chunk_size == size
            chunk = partial(self._chunk, origin, transfer, at, sent if last else None)
            host = self._slot(chunk_size, direct) or self._context.host(origin, max(chunk_size, 1), direct)
            if host is not None:
                if chunk_size:
                    self._copy_to_host(copy_chunk, origin, host, at, chunk_size)
                arrived: Callable[[], None] = partial(self._arrived, host, chunk_size, chunk)
                outcomes = self._device.tracks.pending_outcomes.of_buffer(buffer.usage) if buffer is not None else None
                if buffer is not None and outcomes:
                    release = self._release
                    deliver = partial(
                        self._context.deliver, origin, transfer, download, buffer, outcomes, host, release, arrived
                    )
                    arrived = both(outcomes, deliver)
                self._device.tracks.on_complete(track, arrived)
            else:
                without = direct is not None and self._context.without(max(chunk_size, 1), direct)
                data = direct.read(at, chunk_size) if direct is not None and without else None
                if data is None:
                    return False
                chunk(self._copied(data), chunk_size)
            download.credits -= 1
            download.queued += chunk_size
            if last:
                break
        origin.session.downloads.pop(transfer, None)
        self._device.telemetry.download_chunks_bytes += size
        return True

    def _slot(self, size: int, direct: DirectCopies | None) -> ChunkSlot | None:
        """Reserves a slot of the chunk memory for a chunk; None if the chunk needs other host memory."""
        return None if direct is not None and direct.waits else self.chunks.reserve(size)

    def _copy_to_host(self, copy_chunk: ChunkCopy, origin: Origin, host: HostBuffer, at: int, size: int) -> None:
        try:
            copy_chunk(host, at, size)
        except Exception:  # freed behind the part that the driver has accepted
            if isinstance(host, ChunkSlot):
                self._device.tracks.on_complete(origin.stream.track, partial(self.chunks.drop, host))
            raise

    def _release(self, host: HostBuffer) -> None:
        """Frees host memory whose contents are not sent."""
        if isinstance(host, ChunkSlot):
            self.chunks.drop(host)
        else:
            self._device.staging.release(host)

    def _arrived(self, host: HostBuffer, size: int, chunk: Chunk) -> None:
        data: ChunkSlot | bytes
        if isinstance(host, ChunkSlot):
            self.chunks.send(host)
            data = host
        else:
            data = self._copied(host.view[:size])  # copied, so that the staging memory is free for the next chunk
            self._device.staging.release(host)
        chunk(data, size)

    def _copied(self, data: memoryview | bytes) -> ChunkSlot | bytes:
        """Copies data to a slot that is passed to the front, or to new memory if no slot is free."""
        slot = self.chunks.fill(data)
        return bytes(data) if slot is None else slot

    def _chunk(
        self,
        origin: Origin,
        transfer: int,
        offset: int,
        sent: Callable[[], None] | None,
        data: ChunkSlot | bytes,
        size: int,
    ) -> None:
        outbox, channel, head = self._device.outbox, origin.session.channel, download_head(offset, size)
        flags = LAST if sent is not None else 0
        if isinstance(data, ChunkSlot):
            outbox.put_slot(data.number, size, head, channel=channel, id=transfer, flags=flags)
        else:
            outbox.put_chunk(head, data, channel=channel, id=transfer, flags=flags)
        if sent is not None:
            sent()
