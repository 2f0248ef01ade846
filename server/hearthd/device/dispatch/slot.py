"""One transient buffer of a dispatch: what it is for, where it lies, and the ways of its bytes."""

from __future__ import annotations

from hearth_proto.layouts import Rows
from hearthd.device.context import Device
from hearthd.device.dispatch.plan import Transient
from hearthd.device.flows.transfer import Download, Upload
from hearthd.device.memory.reservations import Reservation
from hearthd.device.operation import Origin
from hearthd.device.session.buffer import Buffer
from hearthd.device.transfers.staged import Direct


class Slot:
    """`into` and `out_of` are for want of page-locked memory."""

    __slots__ = ("buffer", "data", "download", "into", "out_of", "output", "upload", "what")

    def __init__(self, device: Device, origin: Origin, what: Transient, data: bytes) -> None:
        self.what = what
        self.data = data
        """Its input, where that came inside the message."""
        self.buffer = Buffer(0, what.size)
        self.upload: Upload | None = None
        self.download: Download | None = None
        self.output = b""
        self.into = Direct(device, origin, self.buffer, Rows(0, what.size))
        self.out_of = Direct(device, origin, self.buffer, Rows(what.offset, what.length))

    def place(self, reservation: Reservation, offset: int) -> None:
        """There is memory behind it now."""
        self.buffer.reservation = reservation
        self.buffer.address = self.into.address = reservation.memory.address + offset
        self.out_of.address = self.buffer.address + self.what.offset
