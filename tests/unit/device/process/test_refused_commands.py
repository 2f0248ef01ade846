"""A command that will not run releases its resources: its transfer is ended instead of waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import status_pb2
from hearthd.shared.device_spec import DeviceSpec
from tests.support.device.link import Command, DeviceLink


@pytest.fixture
def device() -> Iterator[DeviceLink]:
    link = DeviceLink(DeviceSpec(0, "cpu", 0, memory_limit=1 << 20))
    yield link
    link.close()


def test_the_upload_of_a_write_that_is_skipped_is_ended(device: DeviceLink) -> None:
    device.batch(
        Command(allocate=c.Allocate(buffer=1, size=1 << 30)),
        Command(write=c.Write(buffer=1, transfer=9, size=8)),
    )
    ended = from_status(status_pb2.Status.FromString(device.expect(Kind.ABORT, 9).payload))
    assert ended.reason == Reason.OUT_OF_MEMORY
    again = device.call(write=c.Write(buffer=1, transfer=9, size=8))
    assert from_status(again.error).reason == Reason.TRANSFER_ABORTED


def test_the_transfers_of_a_session_that_closes_are_ended(device: DeviceLink) -> None:
    device.batch(
        Command(allocate=c.Allocate(buffer=1, size=64)),
        Command(write=c.Write(buffer=1, transfer=9, size=8)),
        Command(request=5, read=c.Read(buffer=1, size=8, transfer=10)),
    )
    device.send(Kind.CLOSE, channel=1)
    assert {device.expect(Kind.ABORT).id, device.expect(Kind.ABORT).id} == {9, 10}
    device.expect(Kind.CLOSED)
