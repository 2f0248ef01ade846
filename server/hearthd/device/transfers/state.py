"""State and checks shared by uploads and downloads: transfer numbers, host memory, and early ends."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import TypeVar

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import HostBuffer
from hearthd.device.context import DeviceContext
from hearthd.device.flows.stripe_window import StripeStaging
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.pending_outcomes import PendingOutcome
from hearthd.device.transfers.staged import DirectCopies, StagedCopies, refused_read

MAX_UNCLAIMED = 64
"""Most uploads of one session that have sent bytes before their Write has arrived."""

MAX_ANNOUNCED = 1024
"""Most uploads of one session that were announced on stripes or in shared memory before their Write has arrived: the
announcement often overtakes the command, and carries no bytes. The same limit applies to downloads and their Read."""

Flow = TypeVar("Flow", UploadFlow, DownloadFlow)

ChunkCopy = Callable[[HostBuffer, int, int], None]
"""Copies between a host buffer and the device. Arguments: the host buffer, the first byte of the transfer, and the size
in bytes."""


class TransferContext:
    """State shared by the uploads and downloads of one device process. Device-handle thread only."""

    def __init__(self, device: DeviceContext, copies: StagedCopies) -> None:
        self.device = device
        self.copies = copies
        staging = device.staging
        self.stripe_staging = StripeStaging(device.spec.staging_bytes // 2, staging.release, lambda: device.kick(None))
        """Staging memory that is lent to stripes."""

    def host(self, origin: Origin, size: int, direct: DirectCopies | None) -> HostBuffer | None:
        """Returns staging memory for a chunk. Returns None if the copy has to wait, or must be made directly."""
        if direct is None:
            return self.device.staging.acquire(size, origin.session)
        return None if direct.waits else self.device.staging.find(size, origin.session)

    def without(self, size: int, direct: DirectCopies) -> bool:
        """Returns True if a chunk must be copied directly, without staging memory."""
        return direct.waits or self.device.staging.refusal(size) is not None

    def deliver(
        self,
        origin: Origin,
        transfer: int,
        download: DownloadFlow,
        buffer: Buffer,
        outcomes: Sequence[PendingOutcome],
        host: HostBuffer,
        release: Callable[[HostBuffer], None],
        arrived: Callable[[], None],
    ) -> None:
        """Calls `arrived` for a chunk whose contents depended on `outcomes`.

        If one of the outcomes is a failure, refuses the read instead and releases the chunk's memory.
        """
        if not download.refused and not refused_read(origin, buffer, outcomes):
            arrived()
            return
        release(host)
        if not download.refused:
            download.refused = True
            self.abort(origin.session, transfer, Refusal(Reason.DEPENDENCY_FAILED, "the read failed"))
            self.device.kick(origin.session)

    def abort(self, session: DeviceSession, transfer: int, refusal: Refusal) -> None:
        """Ends a transfer before its last byte, and sends the reason to its other side."""
        flow = session.uploads.pop(transfer, None) or session.downloads.pop(transfer, None)
        session.over.add(transfer)
        payload = refusal.to_status().SerializeToString()
        if flow is not None and flow.striped is not None:
            flow.striped.abort(payload)
        if flow is not None:
            flow.unstripe()
        self.device.outbox.put(Kind.ABORT, payload, channel=session.channel, id=transfer)


def check_live(session: DeviceSession, transfer: int, opposite_flows: Container[int]) -> None:
    """Raises Refusal if a command cannot use the transfer number.

    TRANSFER_ABORTED: the transfer is over; HANDLE_IN_USE: the number is used in the other direction.
    """
    if transfer in session.over:
        raise Refusal(
            Reason.TRANSFER_ABORTED,
            f"transfer {transfer} has ended: it was cancelled, or its number was used before",
            fix="use a new transfer number",
        )
    if transfer in opposite_flows:
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"transfer {transfer} is already in use in the other direction",
            fix="mint a number for each upload and each download",
        )


def claim(flow: UploadFlow | DownloadFlow, transfer: int, command: str) -> None:
    """Claims the transfer for a command of the kind `command`, for example "write".

    Raises Refusal(HANDLE_IN_USE) if another command has claimed it.
    """
    if flow.claimed:
        raise Refusal(
            Reason.HANDLE_IN_USE,
            f"transfer {transfer} belongs to another {command} already",
            fix=f"mint a transfer number for each {command}",
        )
    flow.claimed = True


def announced(flows: dict[int, Flow], transfer: int, make: type[Flow], command: str) -> Flow:
    """Returns the transfer with this number, or creates it if its `command` has not arrived.

    Raises Refusal(QUOTA_EXCEEDED) if too many transfers wait for their command.
    """
    flow = flows.get(transfer)
    if flow is None:
        if unclaimed(flows) >= MAX_ANNOUNCED:
            raise unclaimed_refusal(MAX_ANNOUNCED, "uploads" if make is UploadFlow else "downloads", command)
        flow = flows[transfer] = make()
    return flow


def unclaimed(flows: Mapping[int, UploadFlow] | Mapping[int, DownloadFlow]) -> int:
    """Returns the number of transfers that wait for their command."""
    return sum(not flow.claimed for flow in flows.values())


def unclaimed_refusal(limit: int, direction: str, command: str) -> Refusal:
    """Returns the refusal for a session with too many transfers that wait for their command.

    `limit` is the allowed number, `direction` is "uploads" or "downloads", `command` is "Write" or "Read".
    """
    return Refusal(
        Reason.QUOTA_EXCEEDED,
        f"{limit} {direction} are waiting for their {command}",
        fix=f"send the {command} before",
    )


def second_path_refusal(transfer: int) -> Refusal:
    """Returns the refusal for a transfer that is announced on a second path.

    For example, it is announced on stripes although it already uses Upload.
    """
    return Refusal(
        Reason.HANDLE_IN_USE,
        f"transfer {transfer} already uses Upload or Download",
        fix="choose one path for each transfer, or mint a new number",
    )
