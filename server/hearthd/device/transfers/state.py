"""State and checks shared by uploads and downloads: transfer numbers, host memory, and early ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.flows.stripe_window import StripeStaging
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.operation import Origin
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.pending_outcomes import both
from hearthd.device.transfers.buffer_copy import BufferCopy

MAX_UNCLAIMED = 64
"""Most uploads of one session that have sent bytes before their Write has arrived."""

MAX_ANNOUNCED = 1024
"""Most uploads of one session that were announced on stripes or in shared memory before their Write has arrived: the
announcement often overtakes the command, and carries no bytes. The same limit applies to downloads and their Read."""

FlowTable = dict[int, UploadFlow] | dict[int, DownloadFlow]
Flow = TypeVar("Flow", UploadFlow, DownloadFlow)


class TransferContext:
    """State shared by the uploads and downloads of one device process. Device-handle thread only."""

    def __init__(self, device: DeviceContext) -> None:
        self.device = device
        staging = device.staging
        self.stripe_staging = StripeStaging(device.spec.staging_bytes // 2, staging.release, lambda: device.kick(None))
        """Staging memory that is lent to stripes."""

    def when_arrived(
        self,
        download: DownloadFlow,
        copy: BufferCopy,
        host: HostBuffer,
        release: Callable[[HostBuffer], None],
        arrived: Callable[[], None],
    ) -> None:
        """Calls `arrived` when the copy of a chunk to `host`, the last that was submitted, is done.

        If the chunk of a Read depended on collectives, waits for their outcomes as well. If one of these is a failure,
        refuses the Read instead, and releases the chunk's memory.
        """
        tracks, session = self.device.tracks, copy.origin.session
        outcomes = tracks.pending_outcomes.of_buffer(copy.buffer.usage) if download.sent is not None else ()
        if outcomes:
            on_success = arrived

            def deliver() -> None:
                if not download.refused and not copy.refused(outcomes):
                    on_success()
                    return
                release(host)
                if not download.refused:
                    download.refused = True
                    self.abort(session, download.number, Refusal(Reason.DEPENDENCY_FAILED, "the read failed"))
                    self.device.kick(session)

            arrived = both(outcomes, deliver)
        tracks.on_complete(copy.origin.stream.track, arrived)

    def abort(self, session: DeviceSession, transfer: int, refusal: Refusal) -> None:
        """Ends a transfer before its last byte, and sends the reason to its other side."""
        flows: FlowTable = session.uploads if transfer in session.uploads else session.downloads
        flow = flows.get(transfer)
        payload = refusal.to_status().SerializeToString()
        if flow is not None and flow.striped is not None:
            flow.striped.abort(payload)
        end_flow(session, transfer, flows)
        self.device.outbox.put(Kind.ABORT, payload, channel=session.channel, id=transfer)


def end_flow(session: DeviceSession, transfer: int, flows: FlowTable) -> None:
    """Removes a transfer; commands and messages with its number are refused from now on."""
    flow = flows.pop(transfer, None)
    session.over.add(transfer)
    if flow is not None:
        flow.end_bulk()


def flows_of(session: DeviceSession, kind: type[Flow]) -> dict[int, Flow]:
    """Returns the session's transfers of one direction, by their number."""
    return cast("dict[int, Flow]", session.uploads if kind is UploadFlow else session.downloads)


def check_live(session: DeviceSession, transfer: int, kind: type[Flow]) -> None:
    """Raises Refusal if a command cannot use the transfer number.

    TRANSFER_ABORTED: the transfer has ended; HANDLE_IN_USE: the number is used in the other direction.
    """
    if transfer in session.over:
        raise Refusal(
            Reason.TRANSFER_ABORTED,
            f"transfer {transfer} has ended: it was cancelled, or its number was used before",
            fix="use a new transfer number",
        )
    if transfer in (session.downloads if kind is UploadFlow else session.uploads):
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"transfer {transfer} is already in use in the other direction",
            fix="mint a number for each upload and each download",
        )


def claim(session: DeviceSession, transfer: int, kind: type[Flow], command: str) -> Flow:
    """Returns the transfer with this number, claimed for a command of the kind `command`, for example "write".

    Raises Refusal(TRANSFER_ABORTED) if the transfer has ended, and Refusal(HANDLE_IN_USE) if the number is used in the
    other direction or claimed by another command.
    """
    check_live(session, transfer, kind)
    flow = flows_of(session, kind).setdefault(transfer, kind(transfer))
    if flow.claimed:
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"transfer {transfer} belongs to another {command} already",
            fix=f"mint a transfer number for each {command}",
        )
    flow.claimed = True
    return flow


def announced(session: DeviceSession, transfer: int, kind: type[Flow], limit: int = MAX_ANNOUNCED) -> Flow:
    """Returns the transfer with this number, or creates it if its command has not arrived.

    Raises Refusal(QUOTA_EXCEEDED) if `limit` transfers wait for their command.
    """
    flows = flows_of(session, kind)
    flow = flows.get(transfer)
    if flow is None:
        if sum(not waiting.claimed for waiting in flows.values()) >= limit:
            direction, command = ("uploads", "Write") if kind is UploadFlow else ("downloads", "Read")
            raise Refusal(
                Reason.QUOTA_EXCEEDED,
                f"{limit} {direction} are waiting for their {command}",
                fix=f"send the {command} before",
            )
        flow = flows[transfer] = kind(transfer)
    return flow


def second_path_refusal(transfer: int) -> Refusal:
    """Returns the refusal for a transfer that is announced on a second path.

    For example, it is announced on stripes although it already uses Upload.
    """
    return Refusal(
        Reason.HANDLE_IN_USE,
        f"transfer {transfer} already uses Upload or Download",
        fix="choose one path for each transfer, or mint a new number",
    )


def closed_early(origin: Origin) -> Refusal:
    """Returns the refusal of a command whose client has closed the download before its last byte."""
    return Refusal(
        Reason.TRANSFER_ABORTED,
        "the download was closed before its last byte",
        fix=f"{origin.name.partition(' ')[0]} again",
    )
