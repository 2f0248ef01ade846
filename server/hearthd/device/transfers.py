"""Writes and reads whose bytes travel beside the batch, in chunks, each side paced by credits.

A transfer holds its place in its stream: it is one operation that stays at the head until its last chunk has been
given to the device. What it holds in host memory is bounded: the sender may be `UPLOAD_CREDITS` chunks ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import partial

from google.protobuf.message import DecodeError

from hearth_proto.chunks import download_head, upload_data
from hearth_proto.frames import Flag, Frame, Kind
from hearth_proto.layouts import Rows
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import commands_pb2, status_pb2
from hearthd.device.context import Device
from hearthd.device.copies import Copies, Direct, locate, refused_read
from hearthd.device.doubts import Verdict, both
from hearthd.device.flows import Download, Upload
from hearthd.device.operation import Operation, Origin
from hearthd.device.policy.layout import pieces
from hearthd.device.server import HostBuffer
from hearthd.device.tables import Buffer, Session

Move = Callable[[HostBuffer, int, int], None]
"""Copies (size bytes) between a host buffer and the device, from the transfer's byte (second argument) on."""

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
                self.give_up(session, frame.id, refusal)
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
            self.give_up(session, frame.id, upload.error)
        self._device.kick(session)

    def upload_aborted(self, session: Session, transfer: int, payload: bytes) -> None:
        if transfer in session.over:
            return
        upload = session.uploads.get(transfer)
        if upload is None or not upload.claimed:  # the command that comes for it is refused
            session.uploads.pop(transfer, None)
            session.over.append(transfer)
            return
        upload.error = Refusal(
            Reason.TRANSFER_ABORTED,
            f"the upload ended before its last byte: {_message(payload)}",
            fix="send it again under a new transfer number",
        )
        self._device.kick(session)

    def expect(self, session: Session, transfer: int, what: str) -> Upload:
        """The upload of this number, from now on the `what`'s. Raises Refusal(TRANSFER_ABORTED), where it is over, and
        Refusal(HANDLE_IN_USE)."""
        _check_live(session, transfer, session.downloads)
        upload = session.uploads.setdefault(transfer, Upload())
        _claim(upload, transfer, what)
        return upload

    def write(self, origin: Origin, command: commands_pb2.Write, buffer: Buffer, rows: Rows) -> Operation:
        session = origin.session
        upload = self.expect(session, command.transfer, "write")
        # `data` may hold the first bytes, as a client of the single call sends them.
        if command.data:
            upload.chunks.appendleft(memoryview(command.data))
        operation = Operation(
            origin,
            partial(self._write, origin, command, buffer, upload, Direct(self._device, origin, buffer, rows), rows),
            writes=(origin.stream, buffer),
            spoils=(buffer,),
        )
        operation.on_failure = partial(self.give_up, session, command.transfer)
        return operation

    def _write(
        self,
        origin: Origin,
        command: commands_pb2.Write,
        buffer: Buffer,
        upload: Upload,
        direct: Direct,
        rows: Rows,
    ) -> bool:
        buffer.check_writable("write")
        direct.address = address = locate(buffer, rows, "write")

        def put(host: HostBuffer, at: int, size: int) -> None:
            self._copies.upload(origin, buffer, address, host, size, pieces(rows, at, size))

        if not self.receive(origin, command.transfer, upload, command.size, put, direct):
            return False
        if command.size == buffer.size:
            buffer.failure = None
        origin.reply()
        return True

    def receive(
        self, origin: Origin, transfer: int, upload: Upload, size: int, put: Move, direct: Direct | None = None
    ) -> bool:
        """Gives the chunks that are here to `put`, in the stream's order; whether all `size` bytes have been.

        `put` takes the host buffer over; `direct` is for where there is none. Raises what ended the upload, or Refusal
        for bytes too few or too many.
        """
        session, track = origin.session, origin.stream.track
        while upload.written < size:
            if not upload.chunks:
                if upload.error is not None:
                    raise upload.error
                if upload.ended:
                    raise self._too_short(origin, upload, size)
                return False
            data = upload.chunks[0]
            if upload.written + len(data) > size:
                raise self._too_long(origin, upload, size)
            if track.full:
                return False
            host = self._host(origin, len(data), direct)
            if host is not None:
                host.view[: len(data)] = data
                put(host, upload.written, len(data))
            elif direct is None or not self._without(len(data), direct) or not direct.write(upload.written, data):
                return False
            upload.chunks.popleft()
            upload.written += len(data)
            self._device.outbox.put(Kind.CREDIT, channel=session.channel, id=transfer, flags=1)
        if upload.chunks:
            raise self._too_long(origin, upload, size)
        session.uploads.pop(transfer, None)
        session.over.append(transfer)
        return True

    def _host(self, origin: Origin, size: int, direct: Direct | None) -> HostBuffer | None:
        """Host memory for a chunk, or None: wait, or do without it."""
        if direct is None:
            return self._device.staging.acquire(size, origin.session)
        return None if direct.asked else self._device.staging.find(size, origin.session)

    def _without(self, size: int, direct: Direct) -> bool:
        return direct.asked or self._device.staging.refusal(size) is not None

    @staticmethod
    def _too_short(origin: Origin, upload: Upload, size: int) -> Refusal:
        return Refusal(
            Reason.TRANSFER_ABORTED,
            f"the upload ended after {upload.written} bytes; the {origin.name} announced {size}",
            fix=f"send as many bytes as the {origin.name} says",
            details={"size": size, "received": upload.written},
        )

    @staticmethod
    def _too_long(origin: Origin, upload: Upload, size: int) -> Refusal:
        received = upload.written + len(upload.chunks[0])
        return Refusal(
            Reason.OUT_OF_BOUNDS,
            f"the upload brought at least {received} bytes; the {origin.name} announced {size}",
            fix=f"send as many bytes as the {origin.name} says",
            details={"size": size, "received": received},
        )

    # ---- downloads ----

    def download_frame(self, session: Session, frame: Frame) -> None:
        """The front has a client waiting for these chunks."""
        if frame.id in session.over:
            self.give_up(session, frame.id, Refusal(Reason.TRANSFER_ABORTED, f"transfer {frame.id} is over"))
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
            if not download.claimed:  # the command that comes for it is refused: nobody would ever take its bytes
                del session.downloads[frame.id]
                session.over.append(frame.id)
            self._device.kick(session)
        else:
            self.upload_aborted(session, frame.id, frame.payload)

    def promise(self, session: Session, transfer: int, what: str) -> Download:
        """The download of this number, from now on the `what`'s. Raises as `expect`."""
        _check_live(session, transfer, session.uploads)
        download = session.downloads.setdefault(transfer, Download())
        _claim(download, transfer, what)
        return download

    def read(self, origin: Origin, command: commands_pb2.Read, buffer: Buffer, rows: Rows) -> Operation:
        session = origin.session
        download = self.promise(session, command.transfer, "read")
        operation = Operation(
            origin,
            partial(self._read, origin, command, buffer, download, Direct(self._device, origin, buffer, rows), rows),
            writes=(origin.stream,),
            reads=(buffer,),
        )
        operation.on_failure = partial(self.give_up, session, command.transfer)
        return operation

    def _read(
        self,
        origin: Origin,
        command: commands_pb2.Read,
        buffer: Buffer,
        download: Download,
        direct: Direct,
        rows: Rows,
    ) -> bool:
        session = origin.session
        if download.refused:
            return True
        if download.queued == 0 and refused_read(origin, buffer):
            self.give_up(session, command.transfer, Refusal(Reason.DEPENDENCY_FAILED, "the read failed"))
            return True
        direct.address = address = locate(buffer, rows, "read")

        def take(host: HostBuffer, at: int, size: int) -> None:
            self._copies.download(origin, buffer, address, host, size, pieces(rows, at, size))

        def sent() -> None:
            origin.reply(commands_pb2.Result(read=commands_pb2.ReadResult(size=command.size)))

        return self.send(origin, command.transfer, download, command.size, take, sent, direct, buffer)

    def send(
        self,
        origin: Origin,
        transfer: int,
        download: Download,
        size: int,
        take: Move,
        sent: Callable[[], None] = lambda: None,
        direct: Direct | None = None,
        buffer: Buffer | None = None,
    ) -> bool:
        """Lets `take` fetch as many chunks as the client has room for, in the stream's order; whether all were.

        A chunk goes out when its copy is done, and after the last one `sent` is called. `direct` is for where there is
        no host memory; what turns out to have failed behind `buffer` ends the read. Raises Refusal(TRANSFER_ABORTED)
        where the client has closed the download.
        """
        track = origin.stream.track
        while download.queued < size or not size:
            if download.aborted:
                raise Refusal(
                    Reason.TRANSFER_ABORTED,
                    "the download was closed before its last byte",
                    fix=f"{origin.name.partition(' ')[0]} again",
                )
            if not download.open or not download.credits or track.full:
                return False
            at, part = download.queued, min(self._device.spec.chunk_bytes, size - download.queued)
            last = at + part == size
            chunk = partial(self._chunk, origin, transfer, at, sent if last else None)
            host = self._host(origin, max(part, 1), direct)
            if host is not None:
                if part:
                    take(host, at, part)
                arrived: Callable[[], None] = partial(self._arrived, host, part, chunk)
                verdicts = self._device.tracks.doubts.about(buffer.usage) if buffer is not None else None
                if buffer is not None and verdicts:
                    look = partial(self._look, origin, transfer, download, buffer, verdicts, host, arrived)
                    arrived = both(verdicts, look)
                self._device.tracks.on_complete(track, arrived)
            else:
                without = direct is not None and self._without(max(part, 1), direct)
                data = direct.read(at, part) if direct is not None and without else None
                if data is None:
                    return False
                chunk(data)
            download.credits -= 1
            download.queued += part
            if last:
                break
        origin.session.downloads.pop(transfer, None)
        return True

    def _look(
        self,
        origin: Origin,
        transfer: int,
        download: Download,
        buffer: Buffer,
        verdicts: Sequence[Verdict],
        host: HostBuffer,
        arrived: Callable[[], None],
    ) -> None:
        """A chunk has come whose contents hung on how collectives would end."""
        if not download.refused and not refused_read(origin, buffer, verdicts):
            arrived()
            return
        self._device.staging.release(host)
        if not download.refused:
            download.refused = True
            self.give_up(origin.session, transfer, Refusal(Reason.DEPENDENCY_FAILED, "the read failed"))
            self._device.kick(origin.session)

    def _arrived(self, host: HostBuffer, size: int, chunk: Callable[[bytes], None]) -> None:
        data = bytes(host.view[:size])  # so that the staging memory is free for the next chunk
        self._device.staging.release(host)
        chunk(data)

    def _chunk(self, origin: Origin, transfer: int, offset: int, sent: Callable[[], None] | None, data: bytes) -> None:
        self._device.outbox.put_chunk(
            download_head(offset, len(data)),
            data,
            channel=origin.session.channel,
            id=transfer,
            flags=Flag.LAST if sent is not None else 0,
        )
        if sent is not None:
            sent()

    def give_up(self, session: Session, transfer: int, refusal: Refusal) -> None:
        """Ends a transfer before its last byte; whoever is on its other side is told why."""
        session.uploads.pop(transfer, None)
        session.downloads.pop(transfer, None)
        session.over.append(transfer)
        payload = refusal.to_status().SerializeToString()
        self._device.outbox.put(Kind.ABORT, payload, channel=session.channel, id=transfer)


def _check_live(session: Session, transfer: int, other_way: Container[int]) -> None:
    if transfer in session.over:
        raise Refusal(
            Reason.TRANSFER_ABORTED,
            f"transfer {transfer} is over: it was given up, or used before",
            fix="use a new transfer number",
        )
    if transfer in other_way:
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"transfer {transfer} goes the other way already",
            fix="mint a number for each upload and each download",
        )


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
