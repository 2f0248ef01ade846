"""A device process that ends releases its descriptors."""

from __future__ import annotations

from pathlib import Path

from tests.support.device.lane_rig import Laned


def descriptors() -> set[str]:
    """Returns the files that this process has open, other than sockets, with their descriptors."""
    found = set()
    for number in Path("/proc/self/fd").iterdir():
        try:
            file = str(number.readlink())
        except FileNotFoundError:  # the descriptor with which the directory is read
            continue
        if not file.startswith("socket:"):
            found.add(f"{number.name} {file}")
    return found


def test_device_process_that_ends_releases_its_descriptors() -> None:
    before = descriptors()
    rig = Laned()
    rig.prepare()
    assert descriptors() - before, "the process has descriptors while it runs"
    rig.stop()
    assert not descriptors() - before
