"""Transfers whose bytes lie contiguously in memory that the client shares.

The location of the bytes is announced separately from the command, possibly later. The device copies directly from and
to that memory; after the command's answer, the client may use the memory again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.context import DeviceContext
from hearthd.device.flows.segment import SegmentRange
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.pending_outcomes import both
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.registered import submit_range
from hearthd.device.transfers.state import Flow, announced, check_live, closed_early, end_flow, second_path_refusal


class SharedTransfers:
    """Transfers from and to memory that the client shares. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def place(self, session: DeviceSession, kind: type[Flow], transfer: int, location: SegmentRange) -> None:
        """Sets the location of the transfer's bytes. Raises Refusal.

        Until the command is answered, the client must not change the bytes of an upload, or read those of a download.
        """
        check_live(session, transfer, kind)
        flow = announced(session, transfer, kind)
        if flow.location is not None or flow.striped is not None or flow.streamed:
            raise second_path_refusal(transfer)
        flow.location = location
        location.segment.hold()
        self._device.kick(session)

    def receive(self, upload: UploadFlow, location: SegmentRange, copy: BufferCopy) -> bool:
        """Submits the copies of an upload; see `Uploads.receive`."""
        if upload.error is not None:
            raise upload.error
        if not self._submit(upload, location, copy, upload=True):
            return False
        self._device.telemetry.upload_shared_memory_bytes += location.size
        return True

    def send(self, download: DownloadFlow, location: SegmentRange, copy: BufferCopy) -> bool:
        """Submits the copies of a download; see `Downloads.send`."""
        if download.aborted:
            raise closed_early(copy.origin)
        device, session = self._device, copy.origin.session
        complete = self._submit(download, location, copy, upload=False)
        if download.sent is not None:
            download.outcomes |= dict.fromkeys(device.tracks.pending_outcomes.of_buffer(copy.buffer.usage))
        if not complete:
            return False
        device.telemetry.download_shared_memory_bytes += location.size
        arrived = download.sent
        if arrived is not None:
            if download.outcomes:
                arrived = both(download.outcomes, partial(_settle, copy, download, arrived))
            device.tracks.on_complete(copy.origin.stream.track, arrived)
        end_flow(session, download.number, session.downloads)  # the copies already submitted hold the memory themselves
        return True

    def _submit(
        self, flow: UploadFlow | DownloadFlow, location: SegmentRange, copy: BufferCopy, *, upload: bool
    ) -> bool:
        """Submits as much as the stream has room for; the copies hold the memory until they are done."""
        _check_size(location, copy)
        before, segment = flow.submitted, location.segment
        segment.hold()
        try:
            return submit_range(self._device, flow, location, copy, upload=upload)
        finally:
            if flow.submitted > before and segment.pinned:
                self._device.tracks.on_complete(copy.origin.stream.track, segment.drop)
            else:
                segment.drop()


def _settle(copy: BufferCopy, download: DownloadFlow, sent: Callable[[], None]) -> None:
    """Ends a read whose bytes have been copied: calls `sent`, or refuses the read if one of the outcomes is a failure.

    Called when the outcomes of the collectives that the bytes depended on are known.
    """
    if not copy.refused(download.outcomes):
        sent()


def _check_size(location: SegmentRange, copy: BufferCopy) -> None:
    """Raises Refusal(OUT_OF_BOUNDS) if the announced location has another size than the command."""
    size, name = copy.rows.size, copy.origin.name
    if location.size != size:
        raise Refusal(
            Reason.OUT_OF_BOUNDS,
            f"the bytes of the {name} were placed in {location.size} bytes of segment {location.segment.ident}; "
            f"the {name} has {size}",
            fix=f"place as many bytes as the {name} has",
            details={"size": size, "placed": location.size},
        )
