"""Writes and reads whose bytes are sent outside the batch, in chunks. Each side is limited by credits.

A transfer keeps its position in its stream: it is one operation that stays at the head until its last chunk has been
submitted to the device.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.message import DecodeError

from hearth_proto.frames import Frame
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import status_pb2
from hearthd.device.context import DeviceContext
from hearthd.device.flows.stripe_state import StripeLike
from hearthd.device.flows.transfer import DownloadFlow, UploadFlow
from hearthd.device.session.session import DeviceSession
from hearthd.device.transfers.chunk_memory import DownloadChunkMemory
from hearthd.device.transfers.downloads import Downloads
from hearthd.device.transfers.shared import SharedTransfers
from hearthd.device.transfers.state import TransferContext, end_flow
from hearthd.device.transfers.striped import StripedTransfers
from hearthd.device.transfers.uploads import Uploads


class Transfers:
    """Uploads and downloads of one device process. Device-handle thread only."""

    on_close: Callable[[DeviceSession], None] = staticmethod(lambda session: None)
    """Called when a session is closed, so that its stripes are closed too."""

    stripes: Callable[[], int] = staticmethod(lambda: 0)
    """Returns the number of stripes."""

    def __init__(self, device: DeviceContext, chunks: DownloadChunkMemory) -> None:
        self._device = device
        context = TransferContext(device)
        self.stripe_staging = context.stripe_staging
        self.abort = context.abort
        self.shared = SharedTransfers(device)
        self.striped = StripedTransfers(context)
        self.uploads = Uploads(context, self.shared, self.striped)
        self.downloads = Downloads(context, self.shared, self.striped, chunks)
        self.chunks = chunks

    def close(self, session: DeviceSession) -> None:
        """Ends the transfers of a session that has ended."""
        for flow in _flows(session):
            flow.end_bulk()
        self.on_close(session)

    def lost(self, session: DeviceSession, stripe: StripeLike) -> None:
        """Removes a broken stripe; its chunks are sent over other stripes."""
        for flow in _flows(session):
            if flow.striped is not None:
                flow.striped.lose(stripe)
        self._device.kick(session)

    def aborted(self, session: DeviceSession, frame: Frame) -> None:
        """Ends a transfer whose client side failed; its command, waiting or later, is refused.

        The payload of the frame is an encoded Status with the reason.
        """
        transfer = frame.id
        flow = session.downloads.get(transfer) or session.uploads.get(transfer)
        if flow is None and transfer in session.over:
            return
        if flow is None or not flow.claimed:
            end_flow(session, transfer, session.downloads if transfer in session.downloads else session.uploads)
            return
        if isinstance(flow, DownloadFlow):
            flow.aborted = True
        else:
            flow.error = Refusal(
                Reason.TRANSFER_ABORTED,
                f"the upload ended before its last byte: {_message(frame.payload)}",
                fix="send it again under a new transfer number",
            )
        self._device.kick(session)


def _message(payload: bytes) -> str:
    try:
        return from_status(status_pb2.Status.FromString(payload)).message
    except DecodeError:
        return "no reason was given"


def _flows(session: DeviceSession) -> list[UploadFlow | DownloadFlow]:
    return [*session.uploads.values(), *session.downloads.values()]
