"""What the ranks of a group compute and pass around together, by NCCL's names; `Group` inherits it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hearth.arrays.device_copy import moved
from hearth.collectives.operands import Arrays, check_array, check_rank, reducible, reduction, split
from hearth.collectives.part import Part, among_all, from_root, to_root
from hearth_proto.v1 import commands_pb2 as c

if TYPE_CHECKING:
    from hearth.arrays.array import DeviceArray


class Collectives(Arrays):
    """The operations in which every rank takes part.

    They are sent one way, each device's part on its current stream: it begins once the work before it on the stream is
    done and all ranks have come to it; later work on the arrays waits for it. What goes wrong there
    (`CommunicatorError`, `BufferLostError`) surfaces at a sync, and reading what was to be written raises it as well.

    `arrays` has one array for each device, in the group's order, all of one shape and dtype, and contiguous; so has
    `outs`, which may be the same arrays where it says so. What is written is returned. `timeout`, in seconds, is for
    all ranks to be there and to finish; None: the daemon's default. Reductions take NCCL's dtypes (integers, float16
    to float64, and of ml_dtypes bfloat16 and the float8 that the device has), the others every dtype. All raise
    `ArgumentError` and `DtypeError` where shapes, dtypes, ranks or devices do not fit, `ClosedError` once the group is
    closed, and then nothing was sent.
    """

    def all_reduce(
        self,
        arrays: Sequence[DeviceArray],
        op: str = "sum",
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> list[DeviceArray]:
        """Reduces the arrays elementwise, so that each device has the result: in place, or in `outs`.

        `op`: ``"sum"``, ``"mean"``, ``"min"``, ``"max"`` or ``"prod"``.
        """
        timeout_ns = self._begin(timeout)
        number = reduction(op)
        sources = self._arrays(arrays, written=outs is None)
        dtype, size = reducible(sources[0]), sources[0].size
        targets = sources if outs is None else self._outs(outs, sources[0].shape, sources[0])
        parts = among_all(c.COLLECTIVE_KIND_ALL_REDUCE, sources, targets, size, dtype, number)
        self._run(parts, size, timeout_ns)
        return targets

    def reduce(
        self,
        arrays: Sequence[DeviceArray],
        root: int = 0,
        op: str = "sum",
        out: DeviceArray | None = None,
        timeout: float | None = None,
    ) -> DeviceArray:
        """Reduces the arrays elementwise into one at the rank `root`: `out`, which may be its own of `arrays`, or a new
        one. `op` as in `all_reduce`."""
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        number = reduction(op)
        sources = self._arrays(arrays)
        dtype, size = reducible(sources[0]), sources[0].size
        target = self._out("out", out, root, sources[0].shape, sources[0])
        parts = to_root(c.COLLECTIVE_KIND_REDUCE, sources, target, root, size, dtype, number)
        self._run(parts, size, timeout_ns)
        return target

    def broadcast(
        self,
        arrays: DeviceArray | Sequence[DeviceArray],
        root: int = 0,
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> list[DeviceArray]:
        """Gives every device what the rank `root` has.

        `arrays`: one for each device, overwritten with the root's unless there are `outs`; or the root's array alone,
        which the others get in `outs`, or in new ones.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        if isinstance(arrays, Sequence):
            sources = self._arrays(arrays, written=outs is None)
            source = sources[root]
            targets = sources if outs is None else self._outs(outs, source.shape, source)
        else:
            source = self._placed("array", check_array("array", arrays), root)
            targets = self._outs(outs, source.shape, source, {root: source})
        dtype, size = moved(source, source.size)
        parts = from_root(c.COLLECTIVE_KIND_BROADCAST, source, targets, root, size, dtype)
        self._run(parts, size, timeout_ns)
        return targets

    def all_gather(
        self,
        arrays: Sequence[DeviceArray],
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> list[DeviceArray]:
        """Gives every device all arrays, stacked in the group's order: n arrays of a shape become (n, *shape).

        In place where rank r passes ``outs[r][r]``.
        """
        timeout_ns = self._begin(timeout)
        sources = self._arrays(arrays)
        targets = self._outs(outs, (len(self.devices), *sources[0].shape), sources[0])
        dtype, size = moved(sources[0], sources[0].size)
        parts = among_all(c.COLLECTIVE_KIND_ALL_GATHER, sources, targets, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def reduce_scatter(
        self,
        arrays: Sequence[DeviceArray],
        op: str = "sum",
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> list[DeviceArray]:
        """Reduces the arrays elementwise and gives each device its share of the result along the first dimension, which
        n divides: shape (n * k, ...) becomes (k, ...).

        `op` as in `all_reduce`. In place where ``outs[r]`` is ``arrays[r][r * k : (r + 1) * k]``.
        """
        timeout_ns = self._begin(timeout)
        number = reduction(op)
        sources = self._arrays(arrays)
        shape = split("arrays[0]", sources[0], len(self.devices))
        dtype, size = reducible(sources[0]), math.prod(shape)
        targets = self._outs(outs, shape, sources[0])
        parts = among_all(c.COLLECTIVE_KIND_REDUCE_SCATTER, sources, targets, size, dtype, number)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def all_to_all(
        self,
        arrays: Sequence[DeviceArray],
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> list[DeviceArray]:
        """Gives rank r the r-th share of every array along the first dimension, which n divides, in the group's order:
        a transposition of the shares. Never in place."""
        timeout_ns = self._begin(timeout)
        sources = self._arrays(arrays)
        share = split("arrays[0]", sources[0], len(self.devices))
        targets = self._outs(outs, sources[0].shape, sources[0])
        dtype, size = moved(sources[0], math.prod(share))
        parts = among_all(c.COLLECTIVE_KIND_ALL_TO_ALL, sources, targets, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    def gather(
        self,
        arrays: Sequence[DeviceArray],
        root: int = 0,
        out: DeviceArray | None = None,
        timeout: float | None = None,
    ) -> DeviceArray:
        """Gives the rank `root` all arrays, stacked in the group's order: shape (n, *shape), in `out` or a new one.

        In place where the root passes ``out[root]``.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        sources = self._arrays(arrays)
        target = self._out("out", out, root, (len(self.devices), *sources[0].shape), sources[0])
        dtype, size = moved(sources[0], sources[0].size)
        parts = to_root(c.COLLECTIVE_KIND_GATHER, sources, target, root, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return target

    def scatter(
        self,
        array: DeviceArray,
        root: int = 0,
        outs: Sequence[DeviceArray] | None = None,
        timeout: float | None = None,
    ) -> list[DeviceArray]:
        """Gives each device its share of the rank `root`'s array along the first dimension, which n divides: shape
        (n * k, ...) becomes (k, ...).

        As the reverse of `gather`, shape (n, *shape) goes to `outs` of `shape` as well. In place where ``outs[root]``
        is ``array[root * k : (root + 1) * k]``.
        """
        timeout_ns = self._begin(timeout)
        root = check_rank("root", root, len(self.devices))
        source = self._placed("array", check_array("array", array), root)
        shape = split("array", source, len(self.devices))
        if outs is not None and shape[0] == 1 and all(getattr(out, "shape", None) == shape[1:] for out in outs):
            shape = shape[1:]
        targets = self._outs(outs, shape, source)
        dtype, size = moved(source, math.prod(shape))
        parts = from_root(c.COLLECTIVE_KIND_SCATTER, source, targets, root, size, dtype)
        self._run(parts, size, timeout_ns, ordered=True)
        return targets

    # ---- inside ----

    def _begin(self, timeout: float | None) -> int:
        """The timeout in nanoseconds. Raises what stands against any use of the group."""
        raise NotImplementedError

    def _run(self, presented: Iterable[Part], size: int, timeout_ns: int, ordered: bool = False) -> None:
        """Presents the parts, or adds them to the batch that is open. `ordered`: the order of the ranks matters."""
        raise NotImplementedError
