"""Measurements of a daemon, on one device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from hearth.cli.bench.sampling import After, Measurement, Once
from hearth.cli.format.units import size_name
from hearth.errors import TransferError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hearth.blocking.array import DeviceArray
    from hearth.blocking.device import Device
    from hearth.blocking.function import Function
    from hearth.blocking.node import Node

SOURCE = r"""
extern "C" __global__ void nothing() {}
extern "C" __global__ void add_one(int* x) { x[threadIdx.x] += 1; }
"""
SMALL = 4096


class Probes:
    """Measurements of a device. The first use compiles `SOURCE`; the daemon caches the result."""

    def __init__(self, device: Device, connect: Callable[[], Node]) -> None:
        self._device = device
        self._connect = connect

    def launch(self) -> Measurement:
        """Returns the measurement of one launch and a synchronize: a round trip through all layers."""
        return Measurement("launch_synchronize", "launch + synchronize", "us", partial(self._launching, 1))

    def launches(self, count: int) -> Measurement:
        """Returns the measurement of `count` launches that are sent ahead, with one wait at the end."""
        return Measurement("launches", "pipelined launches", "1/s", partial(self._launching, count), count)

    def small(self) -> Measurement:
        """Returns the measurement of a small write, followed by a read."""
        return Measurement("write_read", f"write + read {size_name(SMALL)}", "us", self._writing)

    def connection(self) -> Measurement:
        """Returns the measurement of a new connection's first result.

        It covers a new session, an upload, a kernel that is already compiled, and the download of its result.
        """
        return Measurement("first_result", "new connection to first result", "ms", self._connecting)

    def upload(self, size: int) -> Measurement:
        """Returns the measurement of uploads, timed until the device has the bytes."""
        return Measurement("upload", f"upload {size_name(size)}", "GB/s", partial(self._uploading, size), size)

    def download(self, size: int) -> Measurement:
        """Returns the measurement of downloads into an existing array."""
        return Measurement("download", f"download {size_name(size)}", "GB/s", partial(self._downloading, size), size)

    def settle(self) -> None:
        """Clears errors after a failure, so that they do not affect the next measurement."""
        from hearth.errors import HearthError

        with contextlib.suppress(HearthError):
            self._device.synchronize()

    # ---- launches ----

    @contextlib.contextmanager
    def _launching(self, count: int) -> Iterator[Once]:
        nothing, device = _kernel(self._device, "nothing"), self._device

        def once() -> None:
            for _ in range(count):
                nothing((1,), (1,), ())
            device.synchronize()

        yield once

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[Once]:
        import numpy as np

        zeros = np.zeros(32, np.int32)
        _kernel(self._device, "add_one")

        def once() -> After:
            node = self._connect()
            try:
                device = node.device(self._device.ordinal)
                x = device.asarray(zeros)
                device.RawModule(code=SOURCE).get_function("add_one")((1,), (zeros.size,), (x,))
                _check(x.get(), zeros + 1)
            except BaseException:
                node.close()
                raise
            return node.close

        yield once

    # ---- data ----

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Once]:
        import numpy as np

        host, back = _bytes(SMALL), np.zeros(SMALL, np.uint8)
        with _array(self._device, SMALL) as x:

            def once() -> None:
                x.set(host)
                x.get(out=back)

            yield once
            _check(back, host)

    @contextlib.contextmanager
    def _uploading(self, size: int) -> Iterator[Once]:
        host, device = _bytes(size), self._device
        with _array(device, size) as x:

            def once() -> None:
                x.set(host)
                device.synchronize()

            yield once  # not checked here, because reading needs a separate right; the download checks the data

    @contextlib.contextmanager
    def _downloading(self, size: int) -> Iterator[Once]:
        import numpy as np

        host, back = _bytes(size), np.zeros(size, np.uint8)
        with _array(self._device, size) as x:
            x.set(host)
            self._device.synchronize()

            def once() -> None:
                x.get(out=back)

            yield once
            _check(back, host)


def _kernel(device: Device, name: str) -> Function:
    """Returns a kernel of `SOURCE`, compiled and loaded. Raises `CompileError`."""
    module = device.RawModule(code=SOURCE)
    module.compile()
    return module.get_function(name)


@contextlib.contextmanager
def _array(device: Device, size: int) -> Iterator[DeviceArray]:
    """Yields an array of `size` bytes on the device, which is freed at the end."""
    import numpy as np

    x = device.empty(size, np.uint8)
    try:
        device.synchronize()  # waits, so that a refused allocation is not measured as a transfer
        yield x
    finally:
        x.free()


def _bytes(size: int) -> npt.NDArray[np.uint8]:
    """Returns `size` bytes of varying values, whose pages are already mapped."""
    import numpy as np

    return np.resize(np.random.default_rng(size).integers(0, 255, min(size, 1 << 20), np.uint8), size)


def _check(actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> None:
    import numpy as np

    if not np.array_equal(actual, expected):
        raise TransferError(
            "the data read back differ from the data written.",
            fix="check the device and the connection with `hearth doctor`.",
        )
