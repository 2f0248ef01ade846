"""The transfers of one channel, by number: those under way, those given up before their stream came, those complete."""

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
"""Transfers that were given up before their stream came, which ends at once; and as many resumable uploads that are
complete, whose answer may have been lost."""


class TransferTable:
    """The transfers of a channel. The RPC streams that carry them call `upload` and `download`, the link the rest."""

    def __init__(self, link: Link, number: int) -> None:
        self.link = link
        self.number = number
        self.loss: Refusal | None = None
        self._flows: dict[int, Transfer] = {}
        self._aborted: OrderedDict[int, Refusal] = OrderedDict()
        self._complete: OrderedDict[int, int] = OrderedDict()  # bytes

    def inspect(self) -> dict[int, TransferView]:
        """Returns the state of the transfers under way, by their numbers."""
        return {transfer: flow.inspect() for transfer, flow in self._flows.items()}

    # ---- for the streams ----

    def upload(self, transfer: int) -> Upload:
        """A new upload. Raises what stands against it."""
        flow = Upload(self, transfer)
        self._register(transfer, flow)
        return flow

    def download(self, transfer: int) -> Download:
        """A new download. Raises what stands against it."""
        flow = Download(self, transfer)
        self._register(transfer, flow)
        flow.begin()
        return flow

    def resumable_upload(self, transfer: int, patience: float, size: int, offset: int) -> Upload | None:
        """The upload of that number, new or begun, for a stream that takes it up; None where it is complete."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Upload) and flow.resumable:
            return flow
        if transfer in self._complete:
            return None
        self._check_beginning(transfer, offset)
        flow = Upload(self, transfer, patience, size)
        self._register(transfer, flow)
        return flow

    def resumable_download(self, transfer: int, patience: float, offset: int) -> Download:
        """The download of that number, new or begun, for a stream that takes it up."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download) and flow.resumable:
            return flow
        self._check_beginning(transfer, offset)
        flow = Download(self, transfer, patience)
        self._register(transfer, flow)
        flow.begin()
        return flow

    def _check_beginning(self, transfer: int, offset: int) -> None:
        if offset and transfer not in self._aborted and self.loss is None:
            raise Refusal(
                Reason.TRANSFER_ABORTED,
                f"Transfer {transfer} is to go on from byte {offset}, and is not known: it is over, or never began.",
                fix="Start it again under a new transfer number.",
                details={"transfer": transfer, "requested": offset},
            )

    def _register(self, transfer: int, flow: Transfer) -> None:
        if self.loss is not None:
            raise self.loss
        refused = self._aborted.pop(transfer, None)
        if refused is not None:
            raise refused
        if transfer in self._flows:
            raise Refusal(
                Reason.HANDLE_IN_USE,
                f"Transfer {transfer} already has a stream.",
                fix="Use each transfer number once.",
                details={"transfer": transfer},
            )
        self._flows[transfer] = flow

    def forget(self, transfer: int) -> None:
        """Forgets a transfer that is over."""
        self._flows.pop(transfer, None)

    def completed(self, transfer: int, size: int) -> None:
        """Notes that all of a resumable upload is on its way; its client may not have been notified."""
        _remember(self._complete, transfer, size)

    def status(self, transfer: int) -> tuple[bool, int, bool]:
        """Returns the state of an upload: it is known, its bytes under way, and it is complete."""
        if transfer in self._complete:
            return True, self._complete[transfer], True
        flow = self._flows.get(transfer)
        return (True, flow.passed, False) if isinstance(flow, Upload) else (False, 0, False)

    def give_up(self, transfer: int) -> None:
        """Ends a transfer that its client does not continue."""
        why = Refusal(Reason.TRANSFER_ABORTED, "The client gave the transfer up.", fix="Start it again.")
        flow = self._flows.get(transfer)
        if flow is not None:
            flow.take_up()
            flow.close(why)
        elif transfer not in self._complete and self.loss is None:  # the command that waits for it must not for ever
            self.link.send(Kind.ABORT, why.to_status().SerializeToString(), channel=self.number, id=transfer)

    def came(self, transfer: int, size: int) -> None:
        """Notes the bytes of a resumable download that have come to the client."""
        flow = self._flows.get(transfer)
        if isinstance(flow, Download):
            flow.came(size)

    # ---- for the link ----

    def on_credit(self, transfer: int, credits: int) -> None:
        flow = self._flows.get(transfer)
        if isinstance(flow, Upload):
            flow.on_credit(credits)

    def on_chunk(self, transfer: int, payload: bytes, flags: int) -> None:
        flow = self._flows.get(transfer)
        if isinstance(flow, Download):
            flow.on_chunk(payload, flags)

    def on_abort(self, transfer: int, payload: bytes) -> None:
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
        """Ends all of them with `refusal`, and refuses others with it."""
        self.loss = self.loss or refusal
        for transfer in list(self._flows):
            self._abort(transfer, refusal)


def _remember(memory: OrderedDict[int, _T], transfer: int, what: _T) -> None:
    memory[transfer] = what
    if len(memory) > _REMEMBERED:
        memory.popitem(last=False)
