"""Transfers over stripes: chunks travel over any stripe that has room, in any order.

For an upload, memory is lent when the Write runs, and copied to the device as it is filled. A read ends when the client
has all chunks.
"""

from __future__ import annotations

from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.stripes import MIN_CHUNK, taken
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.stripe_state import StripeChunk, StripedDownload, StripedUpload, StripeLike
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.state import (
    Flow,
    TransferContext,
    announced,
    check_live,
    closed_early,
    end_flow,
    second_path_refusal,
)


class StripedTransfers:
    """Transfers whose chunks travel over stripes. Device-handle thread only."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self._device = context.device

    def announce(self, session: DeviceSession, kind: type[Flow], transfer: int, chunk: int, stripe: StripeLike) -> None:
        """Adds a stripe over which the client will send the upload, or receive the download. Raises Refusal."""
        size = session.over.uploaded(transfer) if kind is UploadFlow else None
        if size is not None:  # the message TAKEN was lost with the stripes
            stripe.put(taken(transfer, size))
            return
        check_live(session, transfer, kind)
        if chunk < MIN_CHUNK:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"chunks of {chunk} bytes are announced; the minimum is {MIN_CHUNK}",
                fix="send small transfers by Upload and Download, or inside a batch",
                details={"requested": chunk, "allowed": MIN_CHUNK},
            )
        flow = announced(session, transfer, kind)
        if flow.striped is None and flow.streamed:
            raise second_path_refusal(transfer)
        striped = flow.use_stripes(chunk, self._context.stripe_staging)
        if chunk != striped.chunk:
            raise Refusal(
                Reason.INVALID_ARGUMENT,
                f"transfer {transfer} comes in chunks of {striped.chunk} bytes over one stripe, and of {chunk} over "
                f"another",
                fix="announce the same on every stripe",
                details={"requested": chunk, "allowed": striped.chunk},
            )
        striped.join(stripe)
        self._device.kick(session)

    # ---- uploads ----

    def chunk_arrived(self, session: DeviceSession, stripe: StripeLike, chunk: StripeChunk, seconds: float) -> bool:
        """Records the arrival of a chunk.

        Returns True if the chunk's memory was taken over and the chunk need not be sent again.
        """
        upload = session.uploads.get(chunk.transfer)
        if upload is None or upload.striped is None:
            return False
        try:
            upload.striped.arrived(stripe, chunk, seconds)
        except ValueError as error:
            upload.error = Refusal(
                Reason.OUT_OF_BOUNDS,
                str(error),
                fix="cut it into chunks of the announced size, for the size of the write",
            )
        self._device.kick(session)
        return True

    def receive(self, upload: UploadFlow, striped: StripedUpload, copy: BufferCopy) -> bool:
        """Submits the copies of arrived chunks (see `Uploads.receive`), and lends memory for further chunks."""
        size = copy.rows.size
        striped.begin(size)
        while striped.arrived_chunks:
            if copy.origin.stream.track.full:
                return False
            at, host, chunk_size = striped.arrived_chunks[0]
            if isinstance(host, UnpinnedSlot):
                if not copy.put(at, host.view[:chunk_size]):
                    return False
                striped.arrived_chunks.popleft()
            else:
                striped.arrived_chunks.popleft()
                copy.upload_staged(host, at, chunk_size)
            upload.submitted += chunk_size
        if upload.submitted == size:
            return True
        if upload.error is not None:
            raise upload.error
        while striped.missing_credits > 0:
            stripe = striped.next_stripe()
            if stripe is None or not striped.room:
                break
            memory: HostBuffer | None = copy.find(striped.chunk)
            if memory is None:
                if not copy.without(striped.chunk):
                    break
                memory = UnpinnedSlot(striped.chunk)
            striped.grant(stripe, memory)
        return False

    # ---- downloads ----

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

    def send(self, download: DownloadFlow, striped: StripedDownload, copy: BufferCopy) -> bool:
        """Submits the chunks of a download (see `Downloads.send`).

        Returns True once the client has all bytes; chunks of a broken stripe are copied again.
        """
        size = copy.rows.size
        striped.begin(size)
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
            self._context.when_arrived(download, copy, host, release, arrived)
            download.submitted = max(download.submitted, at + chunk_size)
        if download.aborted:
            raise closed_early(copy.origin)
        if not striped.done:
            return False
        session = copy.origin.session
        end_flow(session, download.number, session.downloads)  # a stripe may still announce the transfer
        self._device.telemetry.download_stripes_bytes += size
        if download.sent is not None:
            download.sent()
        return True
