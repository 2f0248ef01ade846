"""The transfers of one channel, by number.

They are those under way, those that were aborted before their stream arrived, and complete ones.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from google.protobuf.message import DecodeError

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal, from_status
from hearth_proto.v1 import status_pb2
from hearthd.front.sessions.link_interface import Link
from hearthd.front.sessions.transfers import Download, Transfer, TransferView, Upload

_T = TypeVar("_T")
_REMEMBERED = 1024
"""Number of remembered transfers that were aborted before their stream arrived; such a stream is ended at once. As many
complete resumable uploads are remembered, because their answer may have been lost."""


class TransferTable:
    """The transfers of a channel.

    The RPC streams that carry transfers call `upload` and `download`; the link calls the `on_...` methods.
    """

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.loss: Refusal | None = None
        self._flows: dict[int, Transfer] = {}
        self._aborted: OrderedDict[int, Refusal] = OrderedDict()
        self._complete: OrderedDict[int, int] = OrderedDict()  # size in bytes

    def inspect(self) -> dict[int, TransferView]:
        """Returns the state of each transfer under way, by its number."""
        return {transfer: flow.inspect() for transfer, flow in self._flows.items()}

    # ---- for the RPC streams ----

    def upload(self, transfer: int) -> Upload:
        """Registers a new upload and returns it.

        Raises if its number is in use, it was aborted or the channel is lost.
        """
        flow = Upload(self, transfer)
        self._register(transfer, flow)
        return flow

    def download(self, transfer: int) -> Download:
        """Registers a new download and returns it.

        Raises if its number is in use, it was aborted or the channel is lost.
        """
        flow = Download(self, transfer)
        self._register(transfer, flow)
        flow.begin()
        return flow

    def resumable_upload(self, transfer: int, resume_s: float, size: int, offset: int) -> Upload | None:
        """Returns the upload with this number for a stream that carries it, and registers it if it is new.

        None: it is complete.
        """
        flow = self._flows.get(transfer)
        if isinstance(flow, Upload) and flow.resumable:
            return flow
        if transfer in self._complete:
            return None
        self._check_beginning(transfer, offset)
        flow = Upload(self, transfer, resume_s, size)
        self._register(transfer, flow)
        return flow

    def resumable_download(self, transfer: int, resume_s: float, offset: int) -> Download:
        """Returns the download with this number for a stream that carries it, and registers it if it is new."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download) and flow.resumable:
            return flow
        self._check_beginning(transfer, offset)
        flow = Download(self, transfer, resume_s)
        self._register(transfer, flow)
        flow.begin()
        return flow

    def _check_beginning(self, transfer: int, offset: int) -> None:
        if offset and transfer not in self._aborted and self.loss is None:
            raise Refusal(
                Reason.TRANSFER_ABORTED,
                f"Transfer {transfer} cannot be resumed at byte {offset}: it has ended or was never started.",
                fix="Start it again under a new transfer number.",
                details={"transfer": transfer, "requested": offset},
            )

    def _register(self, transfer: int, flow: Transfer) -> None:
        if self.loss is not None:
            raise self.loss
        refusal = self._aborted.pop(transfer, None)
        if refusal is not None:
            raise refusal
        if transfer in self._flows:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"Transfer {transfer} already has a stream.",
                fix="Use each transfer number once.",
                details={"transfer": transfer},
            )
        self._flows[transfer] = flow

    def forget(self, transfer: int) -> None:
        """Removes a transfer that has ended."""
        self._flows.pop(transfer, None)

    def completed(self, transfer: int, size: int) -> None:
        """Notes that all of a resumable upload was passed on. Its client may not have received the answer."""
        _remember(self._complete, transfer, size)

    def status(self, transfer: int) -> tuple[bool, int, bool]:
        """Returns the state of an upload: whether it is known, its bytes passed on, and whether it is complete."""
        if transfer in self._complete:
            return True, self._complete[transfer], True
        flow = self._flows.get(transfer)
        return (True, flow.passed, False) if isinstance(flow, Upload) else (False, 0, False)

    def cancel(self, transfer: int) -> None:
        """Ends a transfer that its client does not continue."""
        refusal = Refusal(Reason.TRANSFER_ABORTED, "The client cancelled the transfer.", fix="Start it again.")
        flow = self._flows.get(transfer)
        if flow is not None:
            flow.assign_stream()
            flow.close(refusal)
        # The command that waits for the transfer must not wait forever.
        elif transfer not in self._complete and self.loss is None:
            self.link.send(Kind.ABORT, refusal.to_status().SerializeToString(), channel=self.number, id=transfer)

    def acknowledge(self, transfer: int, size: int) -> None:
        """Notes that the first `size` bytes of a resumable download have reached the client."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download):
            flow.acknowledge(size)

    # ---- for the link ----

    def on_credit(self, transfer: int, credits: int) -> None:
        """Grants an upload `credits` more chunks. Ignored if the upload has ended."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Upload):
            flow.on_credit(credits)

    def on_chunk(self, transfer: int, payload: bytes, flags: int) -> None:
        """Adds a chunk to a download. Ignored if the download has ended."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download):
            flow.on_chunk(payload, flags)

    def on_abort(self, transfer: int, payload: bytes) -> None:
        """Ends a transfer with the status in `payload`, or refuses the stream that will arrive for it."""
        try:
            refusal = from_status(status_pb2.Status.FromString(payload))
        except DecodeError:
            refusal = Refusal(Reason.TRANSFER_ABORTED, f"The device process gave transfer {transfer} up.")
        self._abort(transfer, refusal)

    def _abort(self, transfer: int, refusal: Refusal) -> None:
        flow = self._flows.get(transfer)
        if flow is not None:
            flow.on_abort(refusal)
            if not flow.parked:
                return
            flow.close(refusal)
        _remember(self._aborted, transfer, refusal)

    def end(self, refusal: Refusal) -> None:
        """Ends all transfers with `refusal`, and refuses new ones with it."""
        self.loss = self.loss or refusal
        for transfer in list(self._flows):
            self._abort(transfer, refusal)


def _remember(table: OrderedDict[int, _T], transfer: int, value: _T) -> None:
    table[transfer] = value
    if len(table) > _REMEMBERED:
        table.popitem(last=False)
