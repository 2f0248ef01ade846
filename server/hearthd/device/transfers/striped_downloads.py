"""Downloads over stripes: each chunk is sent over a stripe that has room.

The read ends when the client has all chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.flows.stripe_state import StripedDownload, StripeLike
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.flows.transfer import DownloadFlow
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.pending_outcomes import both
from hearthd.device.transfers.staged import DirectCopies
from hearthd.device.transfers.state import ChunkCopy, TransferContext, announced, check_live, second_path_refusal
from hearthd.device.transfers.striped_uploads import check_chunk, check_same


class StripedDownloads:
    """Downloads whose chunks are sent over stripes, in any order. Device-handle thread only."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self._device = context.device

    def announce(self, session: DeviceSession, transfer: int, chunk: int, stripe: StripeLike) -> None:
        """Adds a stripe over which the client receives the download. Raises Refusal."""
        check_live(session, transfer, session.uploads)
        check_chunk(chunk)
        download = announced(session.downloads, transfer, DownloadFlow, "Read")
        if download.striped is None:
            if download.open:
                raise second_path_refusal(transfer)
            download.striped = StripedDownload(transfer, chunk, self._context.stripe_staging)
        check_same(transfer, chunk, download.striped.chunk)
        download.striped.join(stripe)
        self._device.kick(session)

    def chunk_received(self, session: DeviceSession, transfer: int, stripe: StripeLike, offset: int) -> None:
        """Records that the client has received a chunk. Raises ValueError if the chunk was not sent."""
        download = session.downloads.get(transfer)
        if download is not None and download.striped is not None:
            download.striped.chunk_received(stripe, offset)
            if download.striped.done:
                self._device.kick(session)

    def chunk_written(self, session: DeviceSession, transfer: int, stripe: StripeLike, seconds: float) -> None:
        """Records that a chunk has been written to the stripe, so that its memory is free."""
        download = session.downloads.get(transfer)
        if download is not None and download.striped is not None:
            download.striped.sent(stripe, seconds)
            self._device.kick(session)

    def send(
        self,
        origin: Origin,
        transfer: int,
        download: DownloadFlow,
        striped: StripedDownload,
        size: int,
        copy_chunk: ChunkCopy,
        direct: DirectCopies | None,
        buffer: Buffer | None,
    ) -> bool:
        """Submits the chunks of a download (see `Downloads.send`).

        Returns True once the client has all bytes; chunks of a broken stripe are copied again.
        """
        striped.begin(size)
        track = origin.stream.track
        while (index := striped.peek()) is not None:
            if download.aborted:
                break
            stripe = striped.next_stripe()
            if stripe is None or not striped.room or track.full:
                return False
            at, chunk_size = striped.cut.span(index)
            host = self._context.host(origin, chunk_size, direct)
            if host is None:
                data = (
                    direct.read(at, chunk_size)
                    if direct is not None and self._context.without(chunk_size, direct)
                    else None
                )
                if data is None:
                    return False
                host = UnpinnedSlot(chunk_size)
                host.view[:] = data
                striped.issue(stripe, host)
                striped.fetched(stripe, index, host)
                continue
            copy_chunk(host, at, chunk_size)
            striped.issue(stripe, host)
            arrived: Callable[[], None] = partial(striped.fetched, stripe, index, host)
            outcomes = self._device.tracks.pending_outcomes.of_buffer(buffer.usage) if buffer is not None else None
            if buffer is not None and outcomes:
                release = self._context.stripe_staging.release
                deliver = partial(
                    self._context.deliver, origin, transfer, download, buffer, outcomes, host, release, arrived
                )
                arrived = both(outcomes, deliver)
            self._device.tracks.on_complete(track, arrived)
            download.queued = max(download.queued, at + chunk_size)
        if download.aborted:
            raise Refusal(
                Reason.TRANSFER_ABORTED,
                "the download was closed before its last byte",
                fix=f"{origin.name.partition(' ')[0]} again",
            )
        return striped.done
