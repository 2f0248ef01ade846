"""Sizes and contents of transfers through shared segments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hearth_proto.v1 import commands_pb2 as c
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import GATE
from tests.support.daemon.segments import Sharing

MIB = 1 << 20
PART = 32 * MIB
ANY_SIZE = 3 * MIB + 517


def gone(daemon: DaemonProcess) -> None:
    wait_until(lambda: daemon.gauge("segments") == daemon.gauge("segment_bytes") == 0, "the end of all segments")
    assert mappings(daemon) == 0


def mappings(daemon: DaemonProcess) -> int:
    return Path(f"/proc/{daemon.device_pid()}/maps").read_text().count("memfd:segment")


def noise(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


class Gate:
    """Holds a stream from its creation until `open`."""

    def __init__(self, sharing: Sharing) -> None:
        raw, self._stream = sharing.raw, sharing.stream
        function = raw.function(GATE, "hold")
        self._flag, self.held, self._free = raw.mint(), raw.mint(), raw.mint()
        raw.call("GetGlobal", c.GetGlobal(buffer=self._flag, module=function - 1, name="gate"))
        one = c.Dim3(x=1)
        hold = c.Launch(function=function, grid=one, block=one, arguments=[c.Argument(uint64=0)], timeout_ns=60 * 10**9)
        self._stream.batch(
            c.Command(create_stream=c.CreateStream(stream=self.held)),
            c.Command(create_stream=c.CreateStream(stream=self._free)),
            c.Command(stream=self._free, write=c.Write(buffer=self._flag, data=bytes(4))),
        )
        assert self._stream.failures(self._free) == []
        self._stream.batch(c.Command(stream=self.held, launch=hold))

    def open(self) -> None:
        self._stream.batch(c.Command(stream=self._free, write=c.Write(buffer=self._flag, data=b"\1\0\0\0")))

    def opened(self) -> None:
        """Waits until the stream has been released."""
        assert self._stream.failures(self._free) == []


@contextlib.contextmanager
def gated(sharing: Sharing) -> Iterator[Gate]:
    gate = Gate(sharing)
    try:
        yield gate
    finally:
        gate.open()
        sharing.stream.failures(gate.held)
