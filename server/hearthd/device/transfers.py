"""Writes and reads whose bytes travel beside the batch, in chunks, each side paced by credits.

A transfer holds its place in its stream: it is one operation that stays at the head until its last chunk has been
given to the device. What it holds in host memory is bounded: the sender may be `UPLOAD_CREDITS` chunks ahead.
"""

from __future__ import annotations

from functools import partial

from google.protobuf.message import DecodeError

from hearth_proto.chunks import download_head, upload_data
from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2, status_pb2
from hearthd.device.context import Device
from hearthd.device.copies import Copies, refused_read
from hearthd.device.flows import Download, Upload
from hearthd.device.operation import Operation, Origin
from hearthd.device.server import HostBuffer
from hearthd.device.tables import Buffer, Session

MAX_UNCLAIMED = 64
"""Uploads of one session whose Write has not come yet."""


class Transfers:
    """The bulk side of a device process."""

    def __init__(self, device: Device, copies: Copies) -> None:
        self._device = device
        self._copies = copies

    # ---- uploads ----

    def upload_frame(self, session: Session, frame: Frame) -> None:
        upload = session.uploads.get(frame.id)
        if upload is None:
            if frame.id in session.over:
                return  # its last message may come after its last byte, and others after it was given up
            if sum(not other.claimed for other in session.uploads.values()) >= MAX_UNCLAIMED:
                refusal = Refusal(
                    Reason.QUOTA_EXCEEDED,
                    f"{MAX_UNCLAIMED} uploads are waiting for their Write",
                    fix="send the Write before its upload",
                )
                self._abort(session, frame.id, refusal)
                return
            upload = session.uploads[frame.id] = Upload()
        try:
            data = upload_data(frame.payload)
        except ValueError:
            upload.error = Refusal(Reason.MALFORMED_MESSAGE, "a message of the upload is no UploadRequest")
            data = memoryview(b"")
        if data:
            upload.chunks.append(data)
        if frame.flags & Flag.LAST:
            upload.ended = True
        if upload.error is not None and not upload.claimed:
            self._abort(session, frame.id, upload.error)
        self._device.kick(session)

    def upload_aborted(self, session: Session, transfer: int, payload: bytes) -> None:
        if transfer in session.over:
            return
        upload = session.uploads.setdefault(transfer, Upload())
        upload.error = Refusal(
            Reason.TRANSFER_ABORTED,
            f"the upload ended before its last byte: {_message(payload)}",
            fix="write the buffer again",
        )
        self._device.kick(session)

    def write(self, origin: Origin, command: commands_pb2.Write, buffer: Buffer) -> Operation:
        session = origin.session
        if command.transfer in session.over:
            raise Refusal(
                Reason.TRANSFER_ABORTED,
                f"transfer {command.transfer} is over: it was given up, or used before",
                fix="write again under a new transfer number",
            )
        upload = session.uploads.setdefault(command.transfer, Upload())
        _claim(upload, command.transfer, "write")
        # `data` may hold the first bytes, as a client of the single call sends them.
        if command.data:
            upload.chunks.appendleft(memoryview(command.data))
        operation = Operation(
            origin,
            partial(self._write, origin, command, buffer, upload),
            writes=(origin.stream, buffer),
            spoils=(buffer,),
        )
        operation.on_failure = partial(self._abort, session, command.transfer)
        return operation

    def _write(self, origin: Origin, command: commands_pb2.Write, buffer: Buffer, upload: Upload) -> bool:
        session, track, staging = origin.session, origin.stream.track, self._device.staging
        address = buffer.range(command.offset, command.size, "write")
        while upload.written < command.size:
            if not upload.chunks:
                if upload.error is not None:
                    raise upload.error
                if upload.ended:
                    raise self._too_short(command, upload)
                return False
            data = upload.chunks[0]
            if upload.written + len(data) > command.size:
                raise self._too_long(command, upload, len(data))
            host = None if track.full else staging.acquire(len(data))
            if host is None:
                return False
            upload.chunks.popleft()
            host.view[: len(data)] = data
            self._copies.upload(origin, buffer, address + upload.written, host, len(data))
            upload.written += len(data)
            self._device.outbox.put(Kind.CREDIT, channel=session.channel, id=command.transfer, flags=1)
        if upload.chunks:
            raise self._too_long(command, upload, len(upload.chunks[0]))
        session.uploads.pop(command.transfer, None)
        session.over.append(command.transfer)
        if command.size == buffer.size:
            buffer.failure = None
        origin.reply()
        return True

    @staticmethod
    def _too_short(command: commands_pb2.Write, upload: Upload) -> Refusal:
        return Refusal(
            Reason.TRANSFER_ABORTED,
            f"the upload ended after {upload.written} bytes; the write announced {command.size}",
            fix="send as many bytes as the write says",
            details={"size": command.size, "received": upload.written},
        )

    @staticmethod
    def _too_long(command: commands_pb2.Write, upload: Upload, more: int) -> Refusal:
        return Refusal(
            Reason.OUT_OF_BOUNDS,
            f"the upload brought at least {upload.written + more} bytes; the write announced {command.size}",
            fix="send as many bytes as the write says",
            details={"size": command.size, "received": upload.written + more},
        )

    # ---- downloads ----

    def download_frame(self, session: Session, frame: Frame) -> None:
        """The front has a client waiting for these chunks."""
        if frame.id in session.over:
            self._abort(session, frame.id, Refusal(Reason.TRANSFER_ABORTED, f"transfer {frame.id} is over"))
            return
        download = session.downloads.setdefault(frame.id, Download())
        download.open = True
        download.credits += frame.flags
        self._device.kick(session)

    def credit(self, session: Session, frame: Frame) -> None:
        download = session.downloads.get(frame.id)
        if download is not None:
            download.credits += frame.flags
            self._device.kick(session)

    def aborted(self, session: Session, frame: Frame) -> None:
        """The client's side of a transfer broke."""
        download = session.downloads.get(frame.id)
        if download is not None:
            download.aborted = True
            if not download.claimed:
                del session.downloads[frame.id]
            self._device.kick(session)
        else:
            self.upload_aborted(session, frame.id, frame.payload)

    def read(self, origin: Origin, command: commands_pb2.Read, buffer: Buffer) -> Operation:
        session = origin.session
        download = session.downloads.setdefault(command.transfer, Download())
        _claim(download, command.transfer, "read")
        operation = Operation(
            origin,
            partial(self._read, origin, command, buffer, download),
            writes=(origin.stream,),
            reads=(buffer,),
        )
        operation.on_failure = partial(self._abort, session, command.transfer)
        return operation

    def _read(self, origin: Origin, command: commands_pb2.Read, buffer: Buffer, download: Download) -> bool:
        session, track, staging = origin.session, origin.stream.track, self._device.staging
        if download.queued == 0 and refused_read(origin, buffer):
            self._abort(session, command.transfer, Refusal(Reason.DEPENDENCY_FAILED, "the read failed"))
            return True
        address = buffer.range(command.offset, command.size, "read")
        while download.queued < command.size or not command.size:
            if download.aborted:
                raise Refusal(
                    Reason.TRANSFER_ABORTED, "the download was closed before its last byte", fix="read the buffer again"
                )
            if not download.open or not download.credits or track.full:
                return False
            size = min(self._device.spec.chunk_bytes, command.size - download.queued)
            host = staging.acquire(max(size, 1))
            if host is None:
                return False
            download.credits -= 1
            if size:
                self._copies.download(origin, buffer, address + download.queued, host, size)
            last = download.queued + size == command.size
            arrived = partial(self._chunk, origin, command, host, download.queued, size, last)
            self._device.tracks.on_complete(track, arrived)
            download.queued += size
            if last:
                break
        session.downloads.pop(command.transfer, None)
        return True

    def _chunk(
        self, origin: Origin, command: commands_pb2.Read, host: HostBuffer, offset: int, size: int, last: bool
    ) -> None:
        data = bytes(host.view[:size])  # so that the staging memory is free for the next chunk
        self._device.staging.release(host)
        self._device.outbox.put_chunk(
            download_head(offset, size),
            data,
            channel=origin.session.channel,
            id=command.transfer,
            flags=Flag.LAST if last else 0,
        )
        if last:
            origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(size=command.size)))

    def _abort(self, session: Session, transfer: int, refusal: Refusal) -> None:
        session.uploads.pop(transfer, None)
        session.downloads.pop(transfer, None)
        session.over.append(transfer)
        payload = refusal.to_status().SerializeToString()
        self._device.outbox.put(Kind.ABORT, payload, channel=session.channel, id=transfer)


def _claim(flow: Upload | Download, transfer: int, what: str) -> None:
    if flow.claimed:
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"transfer {transfer} belongs to another {what} already",
            fix=f"mint a transfer number for each {what}",
        )
    flow.claimed = True


def _message(payload: bytes) -> str:
    try:
        return from_status(status_pb2.Status.FromString(payload)).message
    except DecodeError:
        return "no reason was given"
