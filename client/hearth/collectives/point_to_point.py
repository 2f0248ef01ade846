"""From one rank to another: send, receive and barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hearth.arrays.device_copy import moved
from hearth.collectives.operands import Arrays, check_array, check_out, check_rank
from hearth.collectives.part import Part
from hearth.errors import ArgumentError
from hearth_proto.v1 import commands_pb2 as c

if TYPE_CHECKING:
    from hearth.arrays.array import DeviceArray


class PointToPoint(Arrays):
    """The operations in which two ranks take part, and the barrier. Sent one way, as those of `Collectives`."""

    def send(self, array: DeviceArray, to: int, timeout: float | None = None) -> None:
        """Sends an array from its device to the rank `to`, which has to receive one of the same size and dtype.

        Between two ranks outside of a batch, what one does first has to meet what the other does first, and so on: a
        send its receive. The two may be called in either order and from different threads. Both ranks sending first,
        or everybody around a ring, belongs into a `batch`.
        """
        timeout_ns = self._begin(timeout)
        source = check_array("array", array)
        rank, peer = self._rank_of("array", source), check_rank("to", to, len(self.devices))
        dtype, size = moved(source, source.size)
        self._run_pair(Part(rank, c.COLLECTIVE_KIND_SEND, source, None, size, dtype, peer=peer), timeout_ns)

    def recv(self, array: DeviceArray, source: int, timeout: float | None = None) -> DeviceArray:
        """Receives into an array, on its device, what the rank `source` sends to that device's; see `send`. Returns the
        array."""
        timeout_ns = self._begin(timeout)
        target = check_out("array", array)
        rank, peer = self._rank_of("array", target), check_rank("source", source, len(self.devices))
        dtype, size = moved(target, target.size)
        self._run_pair(Part(rank, c.COLLECTIVE_KIND_RECV, None, target, size, dtype, peer=peer), timeout_ns)
        return target

    # ---- inside ----

    def _begin(self, timeout: float | None) -> int:
        raise NotImplementedError

    def _run_pair(self, part: Part, timeout_ns: int) -> None:
        """Presents one side of a send and its receive, or adds it to the batch that is open."""
        raise NotImplementedError

    def _rank_of(self, what: str, array: DeviceArray) -> int:
        for rank, device in enumerate(self.devices):
            if array._connection is device._connection:
                return rank
        raise ArgumentError(
            f"{what} is {array!r}, on no device of {self!r}.",
            reason="INVALID_ARGUMENT",
            fix="pass an array that was made on one of group.devices.",
        )
