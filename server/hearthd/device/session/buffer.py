"""Device memory under a client's handle, and tensor maps: what the driver made of a buffer for TMA."""

from __future__ import annotations

from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.module import ModuleEntry
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_errors import StreamFailure


class ReadOnly(NamedTuple):
    """Reason why a buffer cannot be written to, as a clause behind its name, and the fix."""

    why: str
    fix: str


class Buffer:
    """Device memory under a handle. `usage` orders its users; `failure` is the reason why its contents are invalid."""

    __slots__ = (
        "address",
        "durable",
        "failure",
        "freed",
        "handle",
        "holders",
        "lost",
        "module",
        "place",
        "read_only",
        "reservation",
        "size",
        "usage",
    )

    def __init__(self, handle: int, size: int) -> None:
        self.handle = handle
        self.size = size
        self.address = 0
        self.reservation: Any = None
        """The `hearthd.device.memory.reservations.Reservation` that it lies in; None: the buffer has no reservation."""
        self.place: Any = None
        """The `hearthd.device.memory.shared_ownership.SharedAllocation` that holds the memory, where
        several handles share it; None: the buffer has a reservation."""
        self.read_only: ReadOnly | None = None
        self.holders = 0
        """Graphs and prepared launches that use it: its memory outlives its handle for them."""
        self.durable: Any = None
        """The `hearthd.device.durable.buffers.DurableBuffer` that keeps copies of it; None: it never had any."""
        self.freed = False
        self.module: ModuleEntry | None = None
        self.usage = Usage()
        self.failure: StreamFailure | None = None
        self.lost: Refusal | None = None
        """Reason why there is no memory behind the handle."""

    def range(self, offset: int, size: int, what: str) -> int:
        """Returns the address of `size` bytes at `offset`; raises Refusal for bytes outside."""
        if self.lost is not None:
            raise Refusal(
                Reason.BUFFER_LOST if self.lost.reason == Reason.BUFFER_LOST else Reason.ALLOCATION_FAILED,
                f"{what}: buffer {self.handle} has no memory behind it: {self.lost.message}",
                fix=self.lost.fix or "allocate it again",
                details={**self.lost.details, "cause": self.lost.reason},
            )
        if offset + size > self.size:
            raise Refusal(
                Reason.OUT_OF_BOUNDS,
                f"{what}: bytes [{offset}..{offset + size}) of buffer {self.handle}, which has {self.size}",
                fix="stay within the buffer",
                details={"buffer": self.handle, "offset": offset, "size": size, "buffer_size": self.size},
            )
        return self.address + offset

    def check_writable(self, what: str) -> None:
        """Raises Refusal(READ_ONLY) where it is published, or attached."""
        if self.read_only is not None:
            raise Refusal(
                Reason.READ_ONLY,
                f"{what}: buffer {self.handle} {self.read_only.why}",
                fix=self.read_only.fix,
                details={"buffer": self.handle},
            )


class TensorMapEntry:
    """A client's tensor map: the 128 bytes that the driver encoded for a buffer. A use of the tensor map uses the
    buffer."""

    __slots__ = ("_data", "buffer", "handle", "lost")

    def __init__(self, handle: int, buffer: Buffer) -> None:
        self.handle = handle
        self.buffer = buffer
        self.lost: Refusal | None = None
        """Reason why there is no tensor map behind the handle."""
        self._data = b""

    @property
    def data(self) -> bytes:
        """The CUtensorMap. Raises Refusal(DEPENDENCY_FAILED) where it could not be made."""
        if not self._data:
            why = self.lost.message if self.lost is not None else "its command has not run"
            raise Refusal(
                Reason.DEPENDENCY_FAILED,
                f"tensor map {self.handle} was never made: {why}",
                fix=(self.lost.fix if self.lost is not None else "") or "create it again",
                details={"tensor_map": self.handle, "cause": self.lost.reason if self.lost is not None else ""},
            )
        return self._data

    @data.setter
    def data(self, encoded: bytes) -> None:
        self._data = encoded

    def lose(self, refusal: Refusal) -> None:
        self.lost = refusal
