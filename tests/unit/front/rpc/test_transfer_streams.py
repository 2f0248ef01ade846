"""Upload, Download, Write and Read: bytes, credits and errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import commands_pb2, device_pb2
from hearthd.front.rpc.transfer_streams import data_length
from tests.support.front.fixture import Front, ended, front, refused, refused_while_sending, run, until


async def uploads(f: Front, transfer: int, chunks: list[bytes], device: int = 0) -> AsyncIterator[Any]:
    yield device_pb2.UploadRequest(session_token=f.token, device=device, transfer=transfer, data=chunks[0])
    for chunk in chunks[1:]:
        yield device_pb2.UploadRequest(data=chunk)


async def writes(f: Front, size: int, chunks: list[bytes]) -> AsyncIterator[Any]:
    yield device_pb2.WriteRequest(target=f.target(), command=commands_pb2.Write(buffer=1, size=size))
    for chunk in chunks:
        yield device_pb2.WriteRequest(data=chunk)


async def collect(call: Any) -> bytes:
    data = bytearray()
    async for response in call:
        assert response.offset == len(data)
        data += response.data
    return bytes(data)


def test_upload_passes_bytes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            chunks = [os.urandom(10_000 * n) for n in range(30)]
            answer = await f.devices.Upload(uploads(f, 5, chunks))
            assert answer.received == sum(map(len, chunks))
            await until(lambda: 5 in f.device().finished)
            assert bytes(f.device().uploads[5]) == b"".join(chunks)
            assert not f.device().aborted

    run(scenario())


def test_upload_waits_for_credits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.hold_credits = True
            call = asyncio.ensure_future(f.devices.Upload(uploads(f, 5, [b"x"] * 20)))
            device = f.device()
            await until(lambda: len(device.uploads.get(5, b"")) == 8)
            link = f.daemon.supervisor.find(0).running[0].link
            assert link is not None
            for _ in range(10):
                await link.ping()
            assert len(device.uploads[5]) == 8
            device.send(Kind.CREDIT, channel=1, id=5, flags=3)
            await until(lambda: len(device.uploads[5]) == 11)
            device.send(Kind.CREDIT, channel=1, id=5, flags=100)
            assert (await call).received == 20

    run(scenario())


def test_an_upload_that_breaks_off_is_aborted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            call = f.devices.Upload()
            await call.write(device_pb2.UploadRequest(session_token=f.token, transfer=5, data=b"abc"))
            await until(lambda: f.device().uploads.get(5) == b"abc")
            call.cancel()
            await until(lambda: 5 in f.device().aborted)
            assert 5 not in f.device().finished

    run(scenario())


@pytest.mark.parametrize("early", [True, False])
def test_a_device_ends_an_upload(tmp_path: Path, early: bool) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await f.attach()
            status = Refusal(Reason.INVALID_HANDLE, "Buffer 1 is not live.").to_status().SerializeToString()
            await until(lambda: f.device().opened)
            call = f.devices.Upload()
            if not early:
                await call.write(device_pb2.UploadRequest(session_token=f.token, transfer=5, data=b"abc"))
                await until(lambda: 5 in f.device().uploads)
            f.device().send(Kind.ABORT, status, channel=1, id=5)
            if early:
                link = f.daemon.supervisor.find(0).running[0].link
                assert link is not None
                await link.ping()
                await call.write(device_pb2.UploadRequest(session_token=f.token, transfer=5, data=b"abc"))
            assert (await refused(call)).reason == Reason.INVALID_HANDLE

    run(scenario())


@pytest.mark.parametrize("transfer", [0, 1 << 63])
def test_transfer_numbers_are_checked(tmp_path: Path, transfer: int) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            assert (await refused(f.devices.Upload(uploads(f, transfer, [b""])))).reason == Reason.INVALID_ARGUMENT
            call = f.devices.Download(device_pb2.DownloadRequest(session_token=f.token, transfer=transfer))
            assert (await ended(call)).reason == Reason.INVALID_ARGUMENT

    run(scenario())


def test_bad_uploads_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, limits__max_chunk_bytes="8KiB") as f:
            await f.open()
            big = bytes(8192 + 5000)
            assert (await refused(f.devices.Upload(uploads(f, 5, [b"a", big])))).reason == Reason.MESSAGE_TOO_LARGE
            await until(lambda: 5 in f.device().aborted)
            raw = f.channel.stream_unary("/hearth.v1.DeviceService/Upload")
            call = raw()
            await call.write(b"\xff\xff\xff")
            assert (await refused(call)).reason == Reason.MALFORMED_MESSAGE
            call = raw()
            await call.done_writing()
            assert (await refused(call)).reason == Reason.MALFORMED_MESSAGE
            first = device_pb2.UploadRequest(session_token=f.token, transfer=6, data=b"a").SerializeToString()
            call = raw()
            await call.write(first)
            await call.write(b"\x22\xff")
            assert (await refused(call)).reason == Reason.MALFORMED_MESSAGE
            f.token = "x"
            assert (await refused(f.devices.Upload(uploads(f, 5, [b""])))).reason == Reason.SESSION_EXPIRED

    run(scenario())


def test_second_stream_of_a_transfer_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            call = f.devices.Upload()
            await call.write(device_pb2.UploadRequest(session_token=f.token, transfer=5, data=b"abc"))
            await until(lambda: 5 in f.device().uploads)
            assert (await refused(f.devices.Upload(uploads(f, 5, [b"d"])))).reason == Reason.HANDLE_IN_USE
            await call.done_writing()
            assert (await call).received == 3

    run(scenario())


def test_download_passes_chunks_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await f.attach()
            await until(lambda: f.device().opened)
            data = os.urandom(50_500)
            f.device().provide(1, 5, data)
            call = f.devices.Download(device_pb2.DownloadRequest(session_token=f.token, transfer=5))
            assert await collect(call) == data
            assert not f.device().aborted

    run(scenario())


def test_download_grants_credits_as_the_client_reads(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            f.launcher.chunk = 1 << 20
            await f.open()
            await f.attach()
            await until(lambda: f.device().opened)
            f.device().provide(1, 5, bytes(64 << 20))
            call = f.devices.Download(device_pb2.DownloadRequest(session_token=f.token, transfer=5))
            await call.read()
            await asyncio.sleep(0.2)  # without reads, the data in transit is limited by credits and gRPC's window
            assert f.launcher.chunks_sent < 32
            call.cancel()
            await until(lambda: 5 in f.device().aborted)

    run(scenario())


def test_a_device_ends_a_download(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await f.attach()
            await until(lambda: f.device().opened)
            call = f.devices.Download(device_pb2.DownloadRequest(session_token=f.token, transfer=5))
            reading = asyncio.ensure_future(call.read())
            await until(lambda: (1, 5) in f.device().downloads)
            status = Refusal(Reason.BUFFER_LOST, "gone").to_status().SerializeToString()
            f.device().send(Kind.ABORT, status, channel=1, id=5)
            await asyncio.gather(reading, return_exceptions=True)
            assert (await ended(call)).reason == Reason.BUFFER_LOST

    run(scenario())


@pytest.mark.parametrize("size", [0, 1, 1000, 5 << 20])
def test_write_and_read(tmp_path: Path, size: int) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            f.launcher.chunk = 1 << 20
            await f.open()
            data = os.urandom(size)
            await f.devices.Write(writes(f, size, [data[i : i + 3_000_000] for i in range(0, size, 3_000_000)]))
            command = commands_pb2.Read(buffer=1, size=size)
            read = f.devices.Read(device_pb2.ReadRequest(target=f.target(), command=command))
            assert await collect(read) == data
            assert not f.device().aborted

    run(scenario())


def test_write_inline(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()

            async def one() -> AsyncIterator[Any]:
                yield device_pb2.WriteRequest(target=f.target(), command=commands_pb2.Write(buffer=1, data=b"abc"))

            await f.devices.Write(one())
            assert f.device().memory[1] == b"abc"
            assert f.device().commands[0].write.data == b"abc"

    run(scenario())


@pytest.mark.parametrize("sent", [999, 1001])
def test_a_write_of_the_wrong_size_is_refused(tmp_path: Path, sent: int) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            refusal = await refused(f.devices.Write(writes(f, 1000, [bytes(sent)])))
            assert refusal.reason == Reason.INVALID_ARGUMENT
            assert refusal.details["allowed"] == "1000"
            await until(lambda: f.device().aborted)

    run(scenario())


def test_refused_write_or_read_reports_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            f.launcher.hold_credits = True
            for name in ("write", "read"):
                f.launcher.refusals[name] = Refusal(Reason.OUT_OF_BOUNDS, "beyond the end")
            refusal = await refused_while_sending(lambda: f.devices.Write(writes(f, 2 << 20, [bytes(1000)] * 20)))
            assert refusal.reason == Reason.OUT_OF_BOUNDS
            call = f.devices.Read(
                device_pb2.ReadRequest(target=f.target(), command=commands_pb2.Read(buffer=1, size=9))
            )
            assert (await ended(call)).reason == Reason.OUT_OF_BOUNDS

    run(scenario())


def test_transfers_end_with_their_device(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            call = f.devices.Upload()
            await call.write(device_pb2.UploadRequest(session_token=f.token, transfer=5, data=b"abc"))
            await until(lambda: 5 in f.device().uploads)
            download = f.devices.Download(device_pb2.DownloadRequest(session_token=f.token, transfer=6))
            reading = asyncio.ensure_future(download.read())
            await until(lambda: (1, 6) in f.device().downloads)
            f.device().die()
            assert (await refused(call)).reason == Reason.DEVICE_LOST
            await asyncio.gather(reading, return_exceptions=True)
            assert (await ended(download)).reason == Reason.DEVICE_LOST

    run(scenario())


@given(st.binary(max_size=300), st.text(max_size=20), st.integers(0, 9))
def test_data_length_agrees_with_the_parser(data: bytes, token: str, transfer: int) -> None:
    for message in (
        device_pb2.UploadRequest(data=data),
        device_pb2.UploadRequest(session_token=token, transfer=transfer, data=data),
    ):
        assert data_length(message.SerializeToString()) == len(data)
        assert data_length(message.SerializeToString() + device_pb2.UploadRequest(data=b"z").SerializeToString()) == 1
