"""Communicators of copies between two devices of one node, without NCCL and without kernels.

The sender copies a piece of its buffer to its window, the receiver copies the piece from there to its buffer. A window
has slots, so that one piece is written while another is read. Both devices count the pieces in host memory that they
share (`cuStreamWriteValue64`), and wait for each other's count (`cuStreamWaitValue64`); no thread takes part.

The window is memory of the sender's device, which the receiver's process maps and reads as a peer, if the two devices
can do that: each rank tries to map and read the other's window when it joins. Otherwise the window is page-locked host
memory, and the copy passes through it. A process thus never maps the buffers of another one, only windows.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from cuda.bindings import driver
from cupy_backends.cuda.api import runtime

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cuda.errors import NOT_READY, CudaError, checked, is_fatal, translate, translated
from hearthd.device.cuda.sharing import virtual_memory
from hearthd.device.cuda.sharing.copy_segment import (
    MAPPED,
    OFFER,
    PROOF_BYTES,
    RANKS,
    SIZE,
    SLOT_BYTES,
    SLOTS,
    WINDOW_BYTES,
    CopySegment,
    CopySegments,
)
from hearthd.device.cuda.streams import SIGNALS, Stream

_PORTABLE_MAPPED = 3
"""cudaHostRegisterPortable | cudaHostRegisterMapped."""
_ANY_DIRECTION = 4
"""cudaMemcpyDefault: the driver knows from the addresses where the memory is."""
_AT_LEAST = 0
"""CU_STREAM_WAIT_VALUE_GEQ."""
_POLL_SECONDS = 0.001


class _Window:
    """A mapping of a window in this process; `handle` is None for a window of the other rank."""

    def __init__(self, address: int, size: int, handle: Any = None) -> None:
        self.address = address
        self.size = size
        self.handle = handle

    def close(self) -> None:
        """Unmaps the window; the memory is freed with its last mapping. Raises CudaError."""
        virtual_memory.unmap(self.address, self.size)
        if self.handle is not None:
            virtual_memory.release(self.handle)


class CopyCommunicator:
    """Communicator of one of two ranks, whose only operations are `send` and `recv`."""

    def __init__(self, device: int, rank: int, segment: CopySegment, windows: Sequence[_Window]) -> None:
        """Page-locks the segment in the context of `device`, which is current. Raises CudaError.

        `windows`: the windows of both ranks in device memory; empty: they are those in the segment.
        """
        self._device = device
        self._rank = rank
        self._segment = segment
        self._windows = tuple(windows)
        self._locked_bytes = SIZE if not windows else SIZE - RANKS * WINDOW_BYTES
        runtime.hostRegister(segment.address, self._locked_bytes, _PORTABLE_MAPPED)
        try:
            (counters,) = checked(driver.cuMemHostGetDevicePointer(segment.address, 0))
            self._event = runtime.eventCreateWithFlags(runtime.eventDisableTiming)
            """Recorded after the last operation."""
        except BaseException:
            with suppress(*CudaError):
                runtime.hostUnregister(segment.address)
            raise
        self._counters = int(counters)
        peer = 1 - rank
        addresses = [window.address for window in windows] or list(map(segment.window_address, range(RANKS)))
        self._own_window, self._peer_window = addresses[rank], addresses[peer]
        self._sent = self._received = 0
        """Pieces that have been enqueued."""
        self._failure = ""
        self._lock = threading.Lock()
        self.aborted = False
        """True once `abort` has begun."""

    def enqueue(self, operations: Sequence[CollectiveExchange], stream: Stream) -> None:
        if self._failure:
            raise self._refusal(self._failure)
        try:
            for operation in operations:
                if operation.peer != 1 - self._rank:
                    raise self._refusal(f"it has no rank {operation.peer} to copy to or from")
                if operation.kind == "send":
                    self._send(operation.source, operation.count, stream.pointer)
                elif operation.kind == "recv":
                    self._receive(operation.destination, operation.count, stream.pointer)
                else:
                    raise self._refusal(f"it has no {operation.kind}")
            runtime.eventRecord(self._event, stream.pointer)
        except CudaError as error:
            self._failure = str(error)
            raise translate(error, "copying between devices", Reason.COMMUNICATOR_FAILED) from error

    def _send(self, source: int, size: int, stream: int) -> None:
        filled, drained = self._segment.filled(self._rank), self._segment.drained(self._rank)
        for start in range(0, size, SLOT_BYTES):
            slot = self._own_window + self._sent % SLOTS * SLOT_BYTES
            if self._sent >= SLOTS:
                self._wait(drained, self._sent + 1 - SLOTS, stream)
            runtime.memcpyAsync(slot, source + start, min(SLOT_BYTES, size - start), _ANY_DIRECTION, stream)
            self._sent += 1
            self._write(filled, self._sent, stream)

    def _receive(self, destination: int, size: int, stream: int) -> None:
        peer = 1 - self._rank
        filled, drained = self._segment.filled(peer), self._segment.drained(peer)
        for start in range(0, size, SLOT_BYTES):
            slot = self._peer_window + self._received % SLOTS * SLOT_BYTES
            self._received += 1
            self._wait(filled, self._received, stream)
            runtime.memcpyAsync(destination + start, slot, min(SLOT_BYTES, size - start), _ANY_DIRECTION, stream)
            self._write(drained, self._received, stream)

    def _wait(self, counter: int, value: int, stream: int) -> None:
        checked(driver.cuStreamWaitValue64(stream, self._counters + counter, value, _AT_LEAST))

    def _write(self, counter: int, value: int, stream: int) -> None:
        checked(driver.cuStreamWriteValue64(stream, self._counters + counter, value, 0))  # 0: after a memory barrier

    def failure_reason(self) -> str:
        return self._failure

    can_stop = True

    def stop(self) -> None:
        """Releases the waits of this device until all enqueued operations have ended; frees nothing."""
        self._failure = self._failure or "the copy was stopped"
        with self._lock:
            if not self.aborted:
                self._finish()

    def _finish(self) -> None:
        runtime.setDevice(self._device)
        while True:
            self._segment.release(self._rank)
            if runtime.eventQuery(self._event) != NOT_READY:
                return
            time.sleep(_POLL_SECONDS)

    def abort(self) -> None:
        """Ends running operations as `stop` does, and frees the windows."""
        self._failure = self._failure or "the copy was aborted"
        with self._lock:
            if self.aborted:
                return
            self.aborted = True
            with suppress(*CudaError):  # if the device is lost, its memory is lost, too
                self._finish()
                runtime.eventDestroy(self._event)
                for window in self._windows:
                    window.close()
                runtime.hostUnregister(self._segment.address)
                self._segment.close()

    def _refusal(self, reason: str) -> Refusal:
        return Refusal(
            Reason.COMMUNICATOR_FAILED,
            f"The copy between two devices failed on rank {self._rank}: {reason}.",
            fix="copy again; a new connection of the two devices is made",
            details={"rank": self._rank, "ranks": RANKS},
        )


class CopyCommunicators:
    """Factory of copy communicators.

    `join` and `unique_id` run on helper threads, all other methods on the device-handle thread.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._segments = CopySegments()
        self._lock = threading.Lock()
        self._joined: list[CopyCommunicator] = []

    def check(self, kind: str, dtype: str, op: str) -> None:
        """Raises Refusal(UNSUPPORTED) for a reduction; copies of all dtypes are supported."""
        if kind not in ("send", "recv"):
            raise Refusal(Reason.UNSUPPORTED, f"A copy between devices does not do {kind}.", fix="use a hearth.Group")

    def unique_id(self, ranks: int) -> bytes:
        try:
            return self._segments.create()
        except OSError as error:
            raise _not_joined(f"its shared memory could not be created: {error}") from error

    def forget(self, unique_id: bytes) -> None:
        self._segments.drop(unique_id)

    def join(self, unique_id: bytes, rank: int, ranks: int) -> CopyCommunicator:
        if ranks != RANKS or not 0 <= rank < RANKS:
            raise _not_joined(f"it has {RANKS} ranks, not {ranks}")
        with translated("joining a copy between devices", Reason.COMMUNICATOR_FAILED):
            try:
                runtime.setDevice(self._device)
                self._require_signals()
                segment = self._segments.open(unique_id)
            except (OSError, ValueError) as error:
                raise _not_joined(f"its shared memory could not be opened: {error}") from error
            windows: list[_Window] = []
            try:
                windows = self._windows(segment, rank)
                joined = CopyCommunicator(self._device, rank, segment, windows)
            except BaseException:
                _close(*windows)
                segment.close()
                raise
            finally:
                self._segments.drop(unique_id)  # both ranks have opened it, or the communicator has failed
        with self._lock:
            self._joined = [member for member in self._joined if not member.aborted]
            self._joined.append(joined)
        return joined

    def close(self) -> None:
        """Ends the waits of the remaining communicators. The process ends afterwards, and frees their memory."""
        with self._lock:
            joined, self._joined = self._joined, []
        for communicator in joined:
            threading.Thread(target=communicator.stop, name="copy-stop", daemon=True).start()

    def _require_signals(self) -> None:
        (device,) = checked(driver.cuDeviceGet(self._device))
        (supported,) = checked(driver.cuDeviceGetAttribute(SIGNALS, device))
        if not supported:
            raise Refusal(
                Reason.UNSUPPORTED,
                f"CUDA device {self._device} cannot wait for values in memory ({SIGNALS.name} is 0), which copies "
                "between devices need.",
                fix="copy through the host: x.set(y.get())",
            )

    def _windows(self, segment: CopySegment, rank: int) -> list[_Window]:
        """Returns both windows in device memory; none if one of the devices cannot read the other's memory."""
        own = self._create_window(segment, rank)
        peer: _Window | None = None
        try:
            if segment.exchange(OFFER, rank, own is not None):
                peer = self._map_window(segment, 1 - rank)
            if segment.exchange(MAPPED, rank, peer is not None):
                assert own is not None and peer is not None
                return [own, peer] if rank == 0 else [peer, own]
        except BaseException:
            _close(own, peer)
            raise
        finally:
            self._segments.drop(segment.window_nonce(rank))
        _close(own, peer)
        return []

    def _create_window(self, segment: CopySegment, rank: int) -> _Window | None:
        """Returns a window in this device's memory, kept for the other rank; None if the device has no such memory."""
        try:
            if virtual_memory.missing_attribute(self._device):
                return None
            properties = virtual_memory.properties_of(self._device)
            size = virtual_memory.rounded_up(WINDOW_BYTES, properties)
            handle = virtual_memory.create(size, properties)
            window = _Window(virtual_memory.map_new(handle, size, self._device), size, handle)
            try:
                proof = ctypes.create_string_buffer(segment.proof(rank), PROOF_BYTES)
                _copy_now(window.address, ctypes.addressof(proof), PROOF_BYTES)
                self._segments.keep(segment.window_nonce(rank), virtual_memory.export(handle))
            except BaseException:
                _close(window)
                raise
        except CudaError as error:
            _raise_fatal(error)
            return None
        except OSError:
            return None
        return window

    def _map_window(self, segment: CopySegment, peer: int) -> _Window | None:
        """Returns the other rank's window, mapped and read successfully; None if this device cannot read it."""
        window: _Window | None = None
        try:
            file = self._segments.fetch(segment.window_nonce(peer))
            try:
                size = virtual_memory.rounded_up(WINDOW_BYTES, virtual_memory.properties_of(self._device))
                window = _Window(virtual_memory.map_file(file, size), size)
            finally:
                os.close(file)
            virtual_memory.set_access(window.address, size, self._device, write=False)
            proof = ctypes.create_string_buffer(PROOF_BYTES)
            _copy_now(ctypes.addressof(proof), window.address, PROOF_BYTES)
            if proof.raw == segment.proof(peer):
                return window
        except CudaError as error:
            _raise_fatal(error)
        except OSError:
            pass
        _close(window)
        return None


def _raise_fatal(error: RuntimeError) -> None:
    """Raises the DeviceFault of an error that the process cannot survive."""
    if is_fatal(error):
        raise translate(error, "joining a copy between devices") from error


def _copy_now(destination: int, source: int, size: int) -> None:
    """Copies on a separate stream, so that the copy does not wait for others, and waits for it. Raises CudaError."""
    stream = runtime.streamCreateWithFlags(runtime.streamNonBlocking)
    try:
        runtime.memcpyAsync(destination, source, size, _ANY_DIRECTION, stream)
        runtime.streamSynchronize(stream)
    finally:
        runtime.streamDestroy(stream)


def _close(*windows: _Window | None) -> None:
    for window in windows:
        if window is not None:
            with suppress(*CudaError):
                window.close()


def _not_joined(reason: str) -> Refusal:
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"The devices could not be connected for copies: {reason}.",
        fix="copy again; see the daemon's log",
    )
