"""Uploads: writes whose bytes arrive outside the batch, chunk by chunk, in the order of the write's stream.

The host memory of an upload is bounded, because the sender may be at most `UPLOAD_CREDITS` chunks ahead.
"""

from __future__ import annotations

from functools import partial

from hearth_proto.chunks import upload_data
from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2
from hearthd.device.flows.transfer import UploadFlow
from hearthd.device.operation import Operation, Origin
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.buffer_copy import BufferCopy
from hearthd.device.transfers.shared import SharedTransfers
from hearthd.device.transfers.state import MAX_UNCLAIMED, TransferContext, announced, claim
from hearthd.device.transfers.striped import StripedTransfers


class Uploads:
    """Uploads of one device process. Device-handle thread only."""

    def __init__(self, context: TransferContext, shared: SharedTransfers, striped: StripedTransfers) -> None:
        self._context = context
        self._device = context.device
        self._shared = shared
        self._striped = striped

    def frame(self, session: DeviceSession, frame: Frame) -> None:
        """Accepts a message of Upload from the front; an upload whose Write has not arrived is created."""
        upload = session.uploads.get(frame.id)
        if upload is None:
            if frame.id in session.over:
                # A message may arrive after the last byte, after the upload was abandoned, or a second time because its
                # stripes broke. The credit prevents its sender from waiting forever.
                self._device.outbox.put(Kind.CREDIT, channel=session.channel, id=frame.id, flags=1)
                return
            try:
                upload = announced(session, frame.id, UploadFlow, MAX_UNCLAIMED)
            except Refusal as refusal:
                self._context.abort(session, frame.id, refusal)
                return
        try:
            data = upload_data(frame.payload)
        except ValueError:
            upload.error = Refusal(Reason.MALFORMED_MESSAGE, "a message of the upload is not a valid UploadRequest")
            data = memoryview(b"")
        if data:
            upload.chunks.append(data)
        if frame.flags & Flag.LAST:
            upload.ended = True
        if upload.error is not None and not upload.claimed:
            self._context.abort(session, frame.id, upload.error)
        self._device.kick(session)

    def write(self, copy: BufferCopy, command: commands_pb2.Write) -> Operation:
        """Returns the operation of a Write with a transfer number.

        Claims the upload for it, and raises Refusal as `claim` does.
        """
        origin, buffer = copy.origin, copy.buffer
        upload = claim(origin.session, command.transfer, UploadFlow, "write")
        # `data` may contain the first bytes, as sent by a client that uses the single call.
        if command.data:
            upload.chunks.appendleft(memoryview(command.data))
        write = partial(self._write, upload, copy)
        operation = Operation(origin, write, writes=(origin.stream, buffer), spoils=(buffer,))
        operation.on_failure = partial(self._context.abort, origin.session, command.transfer)
        return operation

    def _write(self, upload: UploadFlow, copy: BufferCopy) -> bool:
        origin, buffer = copy.origin, copy.buffer
        buffer.check_writable("write")
        copy.locate("write")
        is_shared = upload.location is not None
        if not self.receive(upload, copy):
            return False
        if copy.rows.size == buffer.size:
            buffer.failure = None
        if is_shared:  # the client may change its memory after the answer, so the answer follows the copy
            self._device.tracks.on_complete(origin.stream.track, origin.reply)
        else:
            origin.reply()
        return True

    def receive(self, upload: UploadFlow, copy: BufferCopy) -> bool:
        """Submits the copies of the bytes that have arrived, in the order of the stream.

        Returns True once all bytes have been submitted. Raises the error that ended the upload, or Refusal for a wrong
        number of bytes.
        """
        origin, size = copy.origin, copy.rows.size
        session, track = origin.session, origin.stream.track
        if upload.chunks or upload.ended:
            upload.end_bulk()  # the client now sends the bytes over Upload
        if not self._receive_bulk(upload, copy):
            return False
        while upload.submitted < size or upload.chunks:
            if not upload.chunks:
                _check_not_over(origin, upload, size)
                return False
            data = upload.chunks[0]
            received = upload.submitted + len(data)
            if received > size:
                raise Refusal(
                    Reason.OUT_OF_BOUNDS,
                    f"the upload has at least {received} bytes; the {origin.name} announced {size}",
                    fix=f"send as many bytes as the {origin.name} says",
                    details={"size": size, "received": received},
                )
            if track.full or not copy.put(upload.submitted, data):
                return False
            upload.chunks.popleft()
            upload.submitted = received
            self._device.outbox.put(Kind.CREDIT, channel=session.channel, id=upload.number, flags=1)
        session.uploads.pop(upload.number, None)
        session.over.add(upload.number, size)
        if upload.location is None:
            self._device.telemetry.uploaded(size, striped=upload.striped is not None)
        if upload.striped is not None:
            upload.striped.complete()
        upload.end_bulk()
        return True

    def _receive_bulk(self, upload: UploadFlow, copy: BufferCopy) -> bool:
        """Receives bytes that are in shared memory or arrive over stripes, as `receive` does.

        Returns True for other uploads.
        """
        if upload.location is not None:
            return self._shared.receive(upload, upload.location, copy)
        if upload.striped is not None:
            return self._striped.receive(upload, upload.striped, copy)
        return True


def _check_not_over(origin: Origin, upload: UploadFlow, size: int) -> None:
    """Raises an error if the upload has ended before its last byte."""
    if upload.error is not None:
        raise upload.error
    if upload.ended:
        raise Refusal(
            Reason.TRANSFER_ABORTED,
            f"the upload ended after {upload.submitted} bytes; the {origin.name} announced {size}",
            fix=f"send as many bytes as the {origin.name} says",
            details={"size": size, "received": upload.submitted},
        )
