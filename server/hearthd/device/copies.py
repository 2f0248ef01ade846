"""Copies between host buffers and the device, in a stream's order: what inline writes and transfers have in common."""

from __future__ import annotations

from functools import partial

from hearthd.device.context import Device
from hearthd.device.operation import Origin
from hearthd.device.policy.errors import poisoned, surface
from hearthd.device.server import HostBuffer
from hearthd.device.tables import Buffer


class Copies:
    """Belongs to the device-handle thread."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def upload(self, origin: Origin, buffer: Buffer, address: int, host: HostBuffer, size: int) -> None:
        """Host buffer to device, in the stream's order; the host buffer goes back when the copy is done."""
        device = self._device
        track = origin.stream.track
        device.begin(origin.stream)
        device.tracks.before(track, (buffer.usage,))
        device.server.upload(address, host, 0, size, track.stream)
        device.tracks.on_complete(track, partial(device.staging.release, host))
        device.telemetry.host_to_device_bytes += size
        device.telemetry.host_to_device_operations += 1

    def download(self, origin: Origin, buffer: Buffer, address: int, host: HostBuffer, size: int) -> None:
        device = self._device
        track = origin.stream.track
        device.begin(origin.stream)
        device.tracks.before(track, (), (buffer.usage,))
        device.server.download(host, 0, address, size, track.stream)
        device.telemetry.device_to_host_bytes += size
        device.telemetry.device_to_host_operations += 1


def refused_read(origin: Origin, buffer: Buffer) -> bool:
    """Answers a read with what failed before it on its stream, or behind the buffer on any; whether it did."""
    failures = origin.stream.errors.take()
    if not failures:
        behind = poisoned(buffer.failure)
        failures = [behind.cause] if behind is not None else []
    if failures:
        origin.reply_error(surface(failures))
    return bool(failures)
