"""Uploads and downloads of every size, many concurrently, from many threads."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

import hearth
from hearth_proto.reasons import Reason, from_status
from hearth_proto.v1 import commands_pb2 as c
from hearth_proto.v1 import device_pb2
from tests.support.client.internals import connection_of
from tests.support.daemon.harness import DaemonProcess, wait_until
from tests.support.daemon.kernels import gated
from tests.support.daemon.raw import Raw, refused

FREE_MEMORY = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
INLINE = 1 << 20
"""Size in bytes up to which data travels inside a batch (the daemon's default; checked below)."""

SIZES = [0, 1, 2, 255, 256, 257, 4095, 65537, INLINE - 1, INLINE, INLINE + 1, 2 * INLINE, 5 * INLINE + 3]


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8)


def test_the_daemon_has_the_limits_that_these_tests_expect(raw: Raw) -> None:
    assert raw.opened.limits.max_inline_bytes == INLINE
    assert raw.opened.limits.max_chunk_bytes == INLINE


@pytest.mark.parametrize("size", SIZES)
def test_every_size_makes_the_round_trip(gpu: hearth.Device, size: int) -> None:
    host = noise(size, size)
    x = gpu.asarray(host)
    np.testing.assert_array_equal(x.get(), host)
    again = noise(size, size + 1)
    x.set(again)
    np.testing.assert_array_equal(x.get(), again)


@pytest.mark.parametrize(("offset", "size"), [(0, 1), (1, 1), (3, INLINE), (777, 2 * INLINE + 1), (4 * INLINE - 1, 1)])
def test_a_part_at_an_offset(gpu: hearth.Device, offset: int, size: int) -> None:
    host = noise(4 * INLINE).copy()
    x = gpu.asarray(host)
    part = noise(size, 1)
    x[offset : offset + size].set(part)
    host[offset : offset + size] = part
    np.testing.assert_array_equal(x[offset : offset + size].get(), part)
    np.testing.assert_array_equal(x.get(), host)


def test_a_large_array(gpu: hearth.Device) -> None:
    host = np.random.default_rng(3).integers(0, 1 << 62, 6 << 20)  # 48 MiB
    reports: list[tuple[int, int]] = []
    x = gpu.asarray(host, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (host.nbytes, host.nbytes) and reports == sorted(reports)
    np.testing.assert_array_equal(x.get(), host)


@pytest.mark.skipif(
    os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 10 << 30, reason="needs 10 GiB of memory"
)
def test_a_copy_of_more_than_2_gib(gpu: hearth.Device) -> None:
    """Transfers one byte more than a 32-bit `int` counts, in both directions; compares bytes at both ends and around
    each GiB."""
    size = (2 << 30) + 1
    host = np.zeros(size, np.uint8)
    probes = np.unique(np.clip([at + by for at in (0, 1 << 30, 2 << 30) for by in range(-2, 3)], 0, size - 1))
    host[probes] = np.arange(1, len(probes) + 1)
    x = gpu.asarray(host)
    assert x.nbytes == size and x[-1].item() == len(probes)
    host[probes] = 0
    x.readinto(host)
    assert host[probes].tolist() == list(range(1, len(probes) + 1)) and np.count_nonzero(host) == len(probes)


def test_a_hundred_reads_outstanding(gpu: hearth.Device) -> None:
    """All reads wait for a kernel that has not ended, and each gets its own bytes."""
    hosts = [noise(1000 + 37 * index, index) for index in range(100)]
    arrays = [gpu.asarray(host) for host in hosts]
    order = gpu.zeros(1, np.int32)
    with gated(gpu) as gate, ThreadPoolExecutor(100) as pool:
        gate.hold(order)
        reads = [pool.submit(array.get) for array in arrays]
        attachment = connection_of(gpu).attachment()
        wait_until(lambda: attachment.session.outstanding == 100, "100 outstanding reads")
        assert not any(read.done() for read in reads)
        gate.open()
        for read, host in zip(reads, hosts, strict=True):
            np.testing.assert_array_equal(read.result(), host)


def test_a_thousand_reads_outstanding_on_one_session(raw: Raw) -> None:
    """All reads are in one batch, more than a stream accepts; each is answered with its own bytes."""
    data = noise(4000, 5).tobytes()
    buffer = raw.buffer(data)
    with raw.execute() as stream:
        reads = [c.Read(buffer=buffer, offset=number, size=1000 + number) for number in range(1000)]
        stream.batch(*(c.Command(request=number + 1, read=read) for number, read in enumerate(reads)))
        answered = {}
        while len(answered) < 1000:
            response = stream.receive()
            if response.WhichOneof("kind") == "result":
                answered[response.result.request - 1] = response.result.read.data
        for number in range(1000):
            assert answered[number] == data[number : 1000 + 2 * number]
        assert stream.failures() == []
    assert raw.call("MemoryUsage", c.MemoryUsage()).bytes_pinned_in_use == 0


def test_a_sync_of_one_stream_completes_no_read_of_another(gpu: hearth.Device) -> None:
    """The other stream's reads are still pending; they return the bytes of the time of their execution."""
    busy, idle = gpu.stream(), gpu.stream()
    x, order = gpu.zeros(1000, np.uint8), gpu.zeros(1, np.int32)
    y = gpu.full(1000, 7, np.uint8)
    gpu.synchronize()
    with gated(gpu) as gate, ThreadPoolExecutor(8) as pool:
        with busy:
            gate.hold(order)
            x.fill(5, busy)
        reads = [pool.submit(x.get, None, busy) for _ in range(8)]
        attachment = connection_of(gpu).attachment()
        wait_until(lambda: attachment.session.outstanding == 8, "8 outstanding reads")
        assert (y.get(stream=idle) == 7).all()
        idle.synchronize()
        assert not any(read.done() for read in reads)
        assert gpu.memory_usage().bytes_pinned_in_use >= 8 * 1000
        gate.open()
        assert all((read.result() == 5).all() for read in reads)


def test_large_transfers_of_many_threads(gpu: hearth.Device) -> None:
    def both_ways(seed: int) -> bool:
        host = noise(3 * INLINE + seed, seed)
        with gpu.stream():
            return bool((gpu.asarray(host).get() == host).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(both_ways, range(24)))


def test_sessions_do_not_get_each_others_bytes(daemon: DaemonProcess) -> None:
    def session(seed: int) -> bool:
        with daemon.connect() as node:
            host = noise(2 * INLINE, seed)
            x = node.device(0).asarray(host)
            return all(bool((x.get() == host).all()) for _ in range(5))

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(session, range(6)))


def test_both_devices_concurrently(pair: list[hearth.Device]) -> None:
    hosts = [noise(8 * INLINE, seed) for seed in range(2)]
    arrays = [device.asarray(host) for device, host in zip(pair, hosts, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        for back, host in zip(pool.map(lambda x: x.get(), arrays), hosts, strict=True):
            np.testing.assert_array_equal(back, host)


def test_a_timeout_leaves_the_connection_usable(gpu: hearth.Device) -> None:
    for size in (100, 3 * INLINE):
        x = gpu.asarray(noise(size))
        with gated(gpu) as gate:
            gate.hold()
            with pytest.raises(hearth.TimeoutError):
                x.get(timeout=0.05)
        np.testing.assert_array_equal(x.get(), noise(size))


def test_an_upload_holds_its_place_in_the_stream(gpu: hearth.Device) -> None:
    x = gpu.zeros(3 * INLINE, np.uint8)
    for value in range(1, 6):
        x.set(np.full(3 * INLINE, value, np.uint8))
        y = x.copy()
        x.fill(0)
        assert (y.get() == value).all() and not x.get().any()


# ---- through plain stubs ----


def test_an_upload_that_breaks_off_fails_its_write_only(raw: Raw) -> None:
    buffer, transfer = raw.buffer(bytes(100)), 77
    sent, arrived = threading.Event(), threading.Event()

    def messages() -> object:
        yield device_pb2.UploadRequest(session_token=raw.token, transfer=transfer, data=bytes(10))
        sent.set()
        arrived.wait(30)
        raise RuntimeError("the client's side breaks")

    with raw.execute() as stream:
        stream.batch(c.Command(write=c.Write(buffer=buffer, size=100, transfer=transfer)))
        upload = raw.device.Upload.future(messages())
        assert sent.wait(30)
        # answered after the upload on the connection: an upload that has not arrived could not be cancelled
        for _ in range(3):
            raw.call("MemoryUsage", c.MemoryUsage())
        arrived.set()
        with pytest.raises(grpc.RpcError):
            upload.result(30)
        failures = stream.failures()
        assert [failure.command for failure in failures] == ["write"]
        assert stream.failures() == []
    assert raw.read(buffer, 100, 0)[10:] == bytes(90)


@pytest.mark.parametrize(
    ("sent", "reason"), [(99, Reason.TRANSFER_ABORTED), (101, Reason.OUT_OF_BOUNDS), (0, Reason.TRANSFER_ABORTED)]
)
def test_an_upload_of_another_length_is_named(raw: Raw, sent: int, reason: Reason) -> None:
    buffer = raw.buffer(bytes(200))
    with raw.execute() as stream:
        stream.batch(c.Command(write=c.Write(buffer=buffer, size=100, transfer=5)))
        request = device_pb2.UploadRequest(session_token=raw.token, transfer=5, data=bytes(sent))
        upload = raw.device.Upload.future(iter([request]))
        failures = stream.failures()
        assert len(failures) == 1 and str(sent) in failures[0].status.message and "100" in failures[0].status.message
        assert from_status(failures[0].status).reason == reason
        with contextlib.suppress(grpc.RpcError):
            upload.result(30)


def test_transfer_numbers_are_checked(raw: Raw) -> None:
    for transfer in (0, 1 << 63, (1 << 64) - 1):
        request = device_pb2.UploadRequest(session_token=raw.token, transfer=transfer, data=b"x")
        assert refused(raw.device.Upload, iter([request])).reason == Reason.INVALID_ARGUMENT
        wanted = device_pb2.DownloadRequest(session_token=raw.token, transfer=transfer)
        assert refused(raw.device.Download, wanted).reason == Reason.INVALID_ARGUMENT


def test_a_download_may_be_opened_first(raw: Raw) -> None:
    data = noise(2 * INLINE + 5).tobytes()
    buffer = raw.buffer(data)
    with raw.execute() as stream:
        chunks = raw.device.Download(device_pb2.DownloadRequest(session_token=raw.token, transfer=9))
        result = stream.ask(c.Command(read=c.Read(buffer=buffer, size=len(data), transfer=9)))
        got = bytearray(len(data))
        for chunk in chunks:
            got[chunk.offset : chunk.offset + len(chunk.data)] = chunk.data
        assert result.read.size == len(data) and bytes(got) == data
