"""Device memory under a client's handle, and tensor maps, which the driver encodes from a buffer for TMA."""

from __future__ import annotations

from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.module import ModuleEntry
from hearthd.device.streams.ordering import Usage
from hearthd.device.streams.stream_errors import StreamFailure


class ReadOnly(NamedTuple):
    """Reason why a buffer cannot be written, as a clause that follows the buffer's name, and the fix."""

    why: str
    fix: str


POINTERS = ReadOnly(
    "contains addresses, which the daemon has written", "make another array of pointers: addresses cannot be changed"
)
"""Reason why an array of pointers cannot be written."""


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
        "reaches",
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
        """The `hearthd.device.memory.reservations.Reservation` that contains the buffer; None if it has none."""
        self.place: Any = None
        """The `hearthd.device.memory.shared_ownership.SharedAllocation` that holds the memory if several handles share
        it; otherwise None, and the buffer has a reservation."""
        self.read_only: ReadOnly | None = None
        self.holders = 0
        """Number of graphs, prepared launches, tensor maps and arrays of pointers that use the buffer; its memory is
        kept for them after the handle is freed."""
        self.reaches: tuple[Reach, ...] = ()
        """The buffers whose addresses this buffer contains, and those that they contain. Empty for a buffer that
        `WritePointers` has not filled. Does not contain the buffer itself."""
        self.durable: Any = None
        """The `hearthd.device.durable.buffers.DurableBuffer` that keeps copies of the buffer; None if it was never
        durable."""
        self.freed = False
        self.module: ModuleEntry | None = None
        self.usage = Usage()
        self.failure: StreamFailure | None = None
        self.lost: Refusal | None = None
        """Reason why the handle has no memory; None if it has."""

    @property
    def has_pointers(self) -> bool:
        """True for an array of pointers, from the arrival of its command on if it points to other buffers."""
        return bool(self.reaches) or self.read_only is POINTERS

    def range(self, offset: int, size: int, subject: str) -> int:
        """Returns the address of `size` bytes at `offset`.

        Raises Refusal if the bytes are outside the buffer or the handle has no memory; `subject` names the command in
        the message.
        """
        if self.lost is not None:
            raise Refusal(
                Reason.BUFFER_LOST if self.lost.reason == Reason.BUFFER_LOST else Reason.ALLOCATION_FAILED,
                f"{subject}: buffer {self.handle} has no memory: {self.lost.message}",
                fix=self.lost.fix or "allocate it again",
                details={**self.lost.details, "cause": self.lost.reason},
            )
        if offset + size > self.size:
            raise Refusal(
                Reason.OUT_OF_BOUNDS,
                f"{subject}: bytes [{offset}..{offset + size}) of buffer {self.handle}, which has {self.size}",
                fix="stay within the buffer",
                details={"buffer": self.handle, "offset": offset, "size": size, "buffer_size": self.size},
            )
        return self.address + offset

    def check_writable(self, subject: str) -> None:
        """Raises Refusal(READ_ONLY) if the buffer is published, attached, or an array of pointers."""
        if self.read_only is not None:
            raise Refusal(
                Reason.READ_ONLY,
                f"{subject}: buffer {self.handle} {self.read_only.why}",
                fix=self.read_only.fix,
                details={"buffer": self.handle},
            )


class Reach(NamedTuple):
    """A buffer that a kernel can reach through an array of pointers, and True if kernels only read it."""

    buffer: Buffer
    only_read: bool

    @property
    def may_write(self) -> bool:
        """True if a kernel may write to the buffer."""
        return not self.only_read and self.buffer.read_only is None


class TensorMapEntry:
    """A client's tensor map: the 128 bytes that the driver encoded for a buffer.

    Using the tensor map means using the buffer.
    """

    __slots__ = ("buffer", "encoded", "handle", "lost")

    def __init__(self, handle: int, buffer: Buffer) -> None:
        self.handle = handle
        self.buffer = buffer
        self.lost: Refusal | None = None
        """Reason why the tensor map could not be encoded; None otherwise."""
        self.encoded = b""
        """The encoded CUtensorMap; empty until it has been encoded."""

    @property
    def data(self) -> bytes:
        """The encoded CUtensorMap. Raises Refusal(DEPENDENCY_FAILED) if it could not be encoded."""
        if not self.encoded:
            cause = self.lost.message if self.lost is not None else "its command has not run"
            raise Refusal(
                Reason.DEPENDENCY_FAILED,
                f"tensor map {self.handle} was never made: {cause}",
                fix=(self.lost.fix if self.lost is not None else "") or "create it again",
                details={"tensor_map": self.handle, "cause": self.lost.reason if self.lost is not None else ""},
            )
        return self.encoded

    def lose(self, refusal: Refusal) -> None:
        """Records why the tensor map could not be encoded; later uses fail with DEPENDENCY_FAILED and this cause."""
        self.lost = refusal
