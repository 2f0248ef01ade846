"""Exports of published buffers that wait for device memory while the publication changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.ipc.export import Exporting
from hearthd.device.ipc.published import PublishedBuffer

SIZE, CALL, FILE = 64, 3, 5


class Device:
    """A device without room for a copy until the test answers the request for memory."""

    def __init__(self) -> None:
        self.grants = self.server = self.tracks = self
        self.full = True
        self.copies = 0
        self.answered: Callable[[bool], None] | None = None

    def make_room(self, size: int) -> None:
        if self.full:
            raise Refusal(Reason.OUT_OF_MEMORY, "full", details={"granted": 0, "requested": size})

    def request(self, size: int, answered: Callable[[bool], None]) -> None:
        self.answered = answered

    def create_shared(self, size: int) -> Any:
        self.copies += 1
        raise Refusal(Reason.UNSUPPORTED, "the end of this test")


@pytest.mark.parametrize(("ended", "reason"), [(False, Reason.UNSUPPORTED), (True, Reason.NOT_PUBLISHED)])
def test_waiting_export_copies_only_a_buffer_that_is_still_published(ended: bool, reason: Reason) -> None:
    device: Any = Device()
    refused: list[tuple[int, Reason]] = []
    session: Any = SimpleNamespace()
    allocation: Any = SimpleNamespace(shared=None, size=SIZE)
    shared = PublishedBuffer(allocation, session)
    link: Any = SimpleNamespace(device=device, refuse=lambda call, refusal: refused.append((call, refusal.reason)))
    exporting = Exporting(link)
    exporting.export(CALL, shared, FILE)
    assert not refused and device.answered is not None
    if ended:
        shared.publisher = None
    device.full = False
    device.answered(True)
    assert refused == [(CALL, reason)] and not shared.waiting
    assert device.copies == (not ended)
