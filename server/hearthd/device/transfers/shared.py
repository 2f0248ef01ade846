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
from hearthd.device.flows.segment_policy import step
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.pending_outcomes import PendingOutcome, both
from hearthd.device.transfers.staged import DirectCopies, refused_read
from hearthd.device.transfers.state import ChunkCopy, announced, check_live, second_path_refusal


class SharedUploads:
    """Uploads from memory that the client shares. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def place(self, session: DeviceSession, transfer: int, location: SegmentRange) -> None:
        """Sets the location of the upload's bytes, which the client must not change until the command is answered.

        Raises Refusal.
        """
        check_live(session, transfer, session.downloads)
        upload = announced(session.uploads, transfer, UploadFlow, "Write")
        if upload.location is not None or upload.striped is not None or upload.chunks or upload.written or upload.ended:
            raise second_path_refusal(transfer)
        upload.location = location
        location.segment.hold()
        self._device.kick(session)

    def receive(
        self,
        origin: Origin,
        upload: UploadFlow,
        location: SegmentRange,
        size: int,
        copy_chunk: ChunkCopy,
        direct: DirectCopies | None,
    ) -> bool:
        """Submits the copies of an upload; see `Uploads.receive`."""
        if upload.error is not None:
            raise upload.error
        _check_size(origin, "upload", location, size)
        track, segment = origin.stream.track, location.segment
        before = upload.written
        segment.hold()
        try:
            while upload.written < size:
                at = upload.written
                if segment.pinned:
                    if track.full:
                        return False
                    chunk_size = step(location.start + at, size - at)
                    copy_chunk(location.part(at, chunk_size), at, chunk_size)
                else:
                    chunk_size = min(size - at, self._device.spec.chunk_bytes)
                    if direct is None or not direct.write(at, location.view(at, chunk_size)):
                        return False
                upload.written += chunk_size
        finally:
            _release_segment(self._device, origin, location, upload.written > before)
        self._device.telemetry.upload_shared_memory_bytes += size
        return True


class SharedDownloads:
    """Downloads to memory that the client shares. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self._device = device

    def place(self, session: DeviceSession, transfer: int, location: SegmentRange) -> None:
        """Sets the location for the download's bytes; the client reads them when the command is answered.

        Raises Refusal.
        """
        check_live(session, transfer, session.uploads)
        download = announced(session.downloads, transfer, DownloadFlow, "Read")
        if download.location is not None or download.striped is not None or download.open:
            raise second_path_refusal(transfer)
        download.location = location
        location.segment.hold()
        self._device.kick(session)

    def send(
        self,
        origin: Origin,
        transfer: int,
        download: DownloadFlow,
        location: SegmentRange,
        size: int,
        copy_chunk: ChunkCopy,
        sent: Callable[[], None],
        direct: DirectCopies | None,
        buffer: Buffer | None,
    ) -> bool:
        """Submits the copies of a download; see `Downloads.send`."""
        if download.aborted:
            raise Refusal(
                Reason.TRANSFER_ABORTED,
                "the download was closed before its last byte",
                fix=f"{origin.name.partition(' ')[0]} again",
            )
        _check_size(origin, "download", location, size)
        device, track, segment = self._device, origin.stream.track, location.segment
        before = download.queued
        segment.hold()
        try:
            while download.queued < size:
                at = download.queued
                if segment.pinned:
                    if track.full:
                        return False
                    chunk_size = step(location.start + at, size - at)
                    copy_chunk(location.part(at, chunk_size), at, chunk_size)
                else:
                    chunk_size = min(size - at, device.spec.chunk_bytes)
                    data = direct.read(at, chunk_size) if direct is not None else None
                    if data is None:
                        return False
                    location.view(at, chunk_size)[:] = data
                download.queued += chunk_size
                if buffer is not None:
                    for outcome in device.tracks.pending_outcomes.of_buffer(buffer.usage):
                        download.outcomes[outcome] = None
        finally:
            _release_segment(device, origin, location, download.queued > before)
        origin.session.downloads.pop(transfer, None)
        origin.session.over.add(transfer)
        device.telemetry.download_shared_memory_bytes += size
        arrived = sent
        if buffer is not None and download.outcomes:
            arrived = both(download.outcomes, partial(_settle, origin, buffer, download.outcomes, sent))
        device.tracks.on_complete(track, arrived)
        download.unstripe()  # the copies already submitted hold the memory themselves
        return True


def _release_segment(device: DeviceContext, origin: Origin, location: SegmentRange, submitted: bool) -> None:
    """Releases the memory, behind the copies that have been submitted."""
    if submitted and location.segment.pinned:
        device.tracks.on_complete(origin.stream.track, location.segment.drop)
    else:
        location.segment.drop()


def _settle(origin: Origin, buffer: Buffer, outcomes: dict[PendingOutcome, None], sent: Callable[[], None]) -> None:
    """Ends a read whose bytes have been copied: calls `sent`, or refuses the read if one of the outcomes is a failure.

    Called when the outcomes of the collectives that the bytes depended on are known.
    """
    if not refused_read(origin, buffer, outcomes):
        sent()


def _check_size(origin: Origin, direction: str, location: SegmentRange, size: int) -> None:
    """Raises Refusal(OUT_OF_BOUNDS) if the announced location has another size than the command."""
    if location.size != size:
        raise Refusal(
            Reason.OUT_OF_BOUNDS,
            f"the {direction} was placed in {location.size} bytes of segment {location.segment.ident}; "
            f"the {origin.name} has {size}",
            fix=f"place as many bytes as the {origin.name} says",
            details={"size": size, "placed": location.size},
        )
