"""Uploads over stripes: memory is lent when the Write runs, and copied to the device as it is filled."""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearth_proto.stripes import MIN_CHUNK, taken
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.flows.stripe_state import StripedUpload, StripeLike
from hearthd.device.flows.stripe_window import UnpinnedSlot
from hearthd.device.flows.transfer import UploadFlow
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.state import TransferContext, announced, check_live, second_path_refusal


class StripedUploads:
    """Uploads whose chunks arrive over stripes, in any order. Device-handle thread only."""

    def __init__(self, context: TransferContext) -> None:
        self._context = context
        self._device = context.device

    def announce(self, session: DeviceSession, transfer: int, chunk: int, stripe: StripeLike) -> None:
        """Adds a stripe over which the client will send the upload. Raises Refusal."""
        size = session.over.uploaded(transfer)
        if size is not None:  # the message TAKEN was lost with the stripes
            stripe.put(taken(transfer, size))
            return
        check_live(session, transfer, session.downloads)
        check_chunk(chunk)
        upload = announced(session.uploads, transfer, UploadFlow, "Write")
        if upload.striped is None:
            if upload.streamed:
                raise second_path_refusal(transfer)
            upload.striped = StripedUpload(transfer, chunk, self._context.stripe_staging)
        check_same(transfer, chunk, upload.striped.chunk)
        upload.striped.join(stripe)
        self._device.kick(session)

    def chunk_arrived(
        self,
        session: DeviceSession,
        transfer: int,
        stripe: StripeLike,
        offset: int,
        size: int,
        host: HostBuffer,
        seconds: float,
    ) -> bool:
        """Records the arrival of a chunk.

        Returns True if the chunk's memory was taken over and the chunk need not be sent again.
        """
        upload = session.uploads.get(transfer)
        if upload is None or upload.striped is None:
            return False
        try:
            upload.striped.arrived(stripe, offset, size, host, seconds)
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


def check_chunk(chunk: int) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if the chunk size is too small."""
    if chunk < MIN_CHUNK:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"chunks of {chunk} bytes are announced; the minimum is {MIN_CHUNK}",
            fix="send small transfers by Upload and Download, or inside a batch",
            details={"requested": chunk, "allowed": MIN_CHUNK},
        )


def check_same(transfer: int, chunk: int, expected: int) -> None:
    """Raises Refusal(INVALID_ARGUMENT) if a stripe announces a chunk size other than `expected`.

    `expected` is the chunk size that the first stripe of the transfer announced, in bytes.
    """
    if chunk != expected:
        raise Refusal(
            Reason.INVALID_ARGUMENT,
            f"transfer {transfer} comes in chunks of {expected} bytes over one stripe, and of {chunk} over another",
            fix="announce the same on every stripe",
            details={"requested": chunk, "allowed": expected},
        )
