"""Two daemons of one device each that tests may kill and restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hearth
from tests.support.collectives.group_nodes import on_device
from tests.support.collectives.losses import DEVICES
from tests.support.daemon.harness import STOP_S, DaemonProcess


class TwoDaemons:
    """Two daemons, and a session on each. Checks that they leave no resources."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.daemons: list[DaemonProcess] = []
        self.nodes: list[hearth.Node] = []
        try:
            for index in range(2):
                self.daemons.append(self._start(index))
                self.nodes.append(self.daemons[-1].connect())
        except BaseException:
            self.close()
            raise

    @property
    def gpus(self) -> list[hearth.Device]:
        return [node.device(0) for node in self.nodes]

    def group(self, order: Sequence[int]) -> hearth.Group:
        """Forms a group of the two devices, in the given order; checks first that both daemons are running."""
        for daemon in self.daemons:
            assert daemon.process.poll() is None, f"the daemon ended unexpectedly: {daemon.log()[-4000:]}"
        return hearth.Group([self.gpus[index] for index in order])

    def mend(self, killed: int | None = None) -> None:
        """Restarts the daemon that was `killed` on its old addresses."""
        # its sockets close, which other processes notice, some time before the process itself has ended
        if killed is not None:
            self.daemons[killed].process.wait(STOP_S)
        for index, daemon in enumerate(self.daemons):
            if daemon.process.poll() is not None:
                self.nodes[index].close()
                daemon.stop()
                assert not daemon.left_behind()
                self.daemons[index] = self._start(index, daemon)
                self.nodes[index] = self.daemons[index].connect()

    def close(self) -> None:
        leftovers: list[str] = []
        for node in self.nodes:
            node.close()
        for daemon in self.daemons:
            daemon.stop()
            leftovers += daemon.left_behind()
            daemon.remove()
        assert not leftovers

    def _start(self, index: int, predecessor: DaemonProcess | None = None) -> DaemonProcess:
        return DaemonProcess(self._cache, on_device(index, devices=DEVICES), 1, predecessor)

    def __enter__(self) -> TwoDaemons:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
