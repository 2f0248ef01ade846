"""Downloads over stripes: each chunk is sent over a stripe that has room.

The read ends when the client has all chunks.
"""

from __future__ import annotations

from functools import partial

from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.stripe_state import StripedDownload, StripeLike
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.flows.transfer import DownloadFlow
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.state import TransferContext, announced, check_live, closed_early, second_path_refusal
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
            if download.streamed:
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
        self, transfer: int, download: DownloadFlow, striped: StripedDownload, copy: BufferCopy, checked: bool
    ) -> bool:
        """Submits the chunks of a download (see `Downloads.send`).

        Returns True once the client has all bytes; chunks of a broken stripe are copied again.
        """
        striped.begin(copy.rows.size)
        while (index := striped.peek()) is not None:
            if download.aborted:
                break
            stripe = striped.next_stripe()
            if stripe is None or not striped.room or copy.origin.stream.track.full:
                return False
            at, chunk_size = striped.cut.span(index)
            host: HostBuffer | None = copy.find(chunk_size)
            if host is None:
                data = copy.get_now(at, chunk_size) if copy.without(chunk_size) else None
                if data is None:
                    return False
                host = UnpinnedSlot(chunk_size)
                host.view[:] = data
                striped.issue(stripe, host)
                striped.fetched(stripe, index, host)
                continue
            copy.download_staged(host, at, chunk_size)
            striped.issue(stripe, host)
            arrived = partial(striped.fetched, stripe, index, host)
            release = self._context.stripe_staging.release
            self._context.when_arrived(transfer, download, copy, checked, host, release, arrived)
            download.submitted = max(download.submitted, at + chunk_size)
        if download.aborted:
            raise closed_early(copy.origin)
        return striped.done
