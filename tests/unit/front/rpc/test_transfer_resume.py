"""Uploads and downloads whose streams break and are resumed: received bytes, kept bytes, and the end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from hearth_proto.frames import Kind
from hearth_proto.reasons import Reason, Refusal
from hearth_proto.v1 import device_pb2, device_pb2_grpc
from hearthd.front.sessions import transfers
from tests.support.front.execute_batches import device_settles
from tests.support.front.fixture import Front, ended, front, refused, run, until
from tests.support.front.resumed_streams import attach, received

DATA = os.urandom(10_000)


def chunk(f: Front, data: bytes, offset: int = 0, **fields: Any) -> device_pb2.UploadRequest:
    """Returns the first message of a stream of upload 5."""
    more = {"resumable": True, "size": len(DATA), **fields}
    return device_pb2.UploadRequest(session_token=f.token, transfer=5, data=data, offset=offset, **more)


async def status(f: Front, *, give_up: bool = False) -> tuple[bool, int, bool]:
    request = device_pb2.TransferStatusRequest(session_token=f.token, transfer=5, give_up=give_up)
    answer = await f.devices.TransferStatus(request)
    return answer.known, answer.received, answer.complete


async def half_way(f: Front) -> None:
    """Passes 4000 bytes of the upload on, and breaks its stream."""
    call = f.devices.Upload()
    await call.write(chunk(f, DATA[:3000]))
    await call.write(device_pb2.UploadRequest(data=DATA[3000:4000]))
    await until(lambda: len(f.device().uploads.get(5, b"")) == 4000)
    call.cancel()
    [session] = f.daemon.sessions
    transfers = session.channels[0].transfers
    await until(lambda: (flow := transfers.inspect().get(5)) is None or flow.parked)


@pytest.mark.parametrize("offset", [4000, 3500, 0])
def test_an_upload_continues(tmp_path: Path, offset: int) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            assert await status(f) == (False, 0, False)
            await half_way(f)
            assert await status(f) == (True, 4000, False)
            call = f.devices.Upload()
            await call.write(chunk(f, DATA[offset : offset + 300], offset))
            for start in range(offset + 300, len(DATA), 1000):
                await call.write(device_pb2.UploadRequest(data=DATA[start : start + 1000]))
            assert (await call).received == len(DATA), (
                "it is complete with its last byte, without a half-close by the client"
            )
            await until(lambda: 5 in f.device().finished)
            assert bytes(f.device().uploads[5]) == DATA and not f.device().aborted
            assert await status(f) == (True, len(DATA), True), "for a client that did not get the answer"
            assert (await f.devices.Upload(iter([chunk(f, DATA[:10])]))).received == len(DATA)
            assert bytes(f.device().uploads[5]) == DATA

    run(scenario())


def test_upload_stream_breaks_after_its_last_byte(tmp_path: Path) -> None:
    """All bytes were passed on, and the device process reads nothing at the moment. They are not sent again."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await half_way(f)
            [session] = f.daemon.sessions
            link: Any = session.channels[0].link
            drain = link.drain
            link.drain = asyncio.Event().wait
            call = f.devices.Upload()
            await call.write(chunk(f, DATA[4000:], 4000))
            await until(lambda: 5 in f.device().finished)
            call.cancel()
            await until(lambda: 5 not in session.channels[0].transfers.inspect())
            link.drain = drain
            assert await status(f) == (True, len(DATA), True)
            assert (await f.devices.Upload(iter([chunk(f, DATA)]))).received == len(DATA)
            assert bytes(f.device().uploads[5]) == DATA and not f.device().aborted

    run(scenario())


def test_gap_is_refused_without_damage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            unknown = await refused(f.devices.Upload(iter([chunk(f, DATA[4000:], 4000)])))
            assert unknown.reason == Reason.TRANSFER_ABORTED
            await half_way(f)
            gap = await refused(f.devices.Upload(iter([chunk(f, DATA[5000:], 5000)])))
            assert (gap.reason, gap.details["allowed"]) == (Reason.INVALID_ARGUMENT, "0 to 4000")
            assert (await f.devices.Upload(iter([chunk(f, DATA[4000:], 4000)]))).received == len(DATA)
            await until(lambda: 5 in f.device().finished)
            assert bytes(f.device().uploads[5]) == DATA

    run(scenario())


def test_stale_stream_is_replaced(tmp_path: Path) -> None:
    """The old stream may hold a message while it waits for the device's credits. That message is not passed on
    twice."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            f.launcher.hold_credits = True
            await f.open()
            old = f.devices.Upload()
            await old.write(chunk(f, DATA[:100]))
            for start in range(100, 1200, 100):
                await old.write(device_pb2.UploadRequest(data=DATA[start : start + 100]))
            await until(lambda: len(f.device().uploads.get(5, b"")) == 800)
            new = f.devices.Upload()
            await new.write(chunk(f, DATA[800:], 800))
            assert (await refused(old)).reason == Reason.HANDLE_IN_USE
            f.launcher.hold_credits = False
            f.device().send(Kind.CREDIT, channel=1, id=5, flags=1)
            assert (await new).received == len(DATA)
            await until(lambda: 5 in f.device().finished)
            assert bytes(f.device().uploads[5]) == DATA

    run(scenario())


def test_a_stream_that_ends_early_or_brings_too_much(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            early = await refused(f.devices.Upload(iter([chunk(f, DATA[:4000])])))
            assert (early.reason, early.details["received"]) == (Reason.TRANSFER_ABORTED, "4000")
            assert await status(f) == (True, 4000, False) and not f.device().aborted
            more = await refused(f.devices.Upload(iter([chunk(f, DATA[4000:] + b"!", 4000)])))
            assert more.reason == Reason.INVALID_ARGUMENT
            await until(lambda: 5 in f.device().aborted)
            assert await status(f) == (False, 0, False)

    run(scenario())


def test_transfer_that_is_not_resumed_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            stream, _ = await attach(f)  # the session stays alive; the upload has a separate timeout
            [session] = f.daemon.sessions
            session.lease = 0.3
            await half_way(f)
            await until(lambda: 5 in f.device().aborted)
            assert await status(f) == (False, 0, False)
            stream.cancel()

    run(scenario())


@pytest.mark.parametrize("stream", ["broken", "there", "never"])
def test_cancelled_transfer_is_reported_by_the_client(tmp_path: Path, stream: str) -> None:
    """The upload may never have begun. The command that waits for it must not wait forever."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await attach(f)
            call = None
            if stream == "broken":
                await half_way(f)
            elif stream == "there":
                call = f.devices.Upload()
                await call.write(chunk(f, DATA[:3000]))
                await until(lambda: f.device().uploads)
            assert await status(f, give_up=True) == (False, 0, False)
            await until(lambda: 5 in f.device().aborted)
            if call is not None:
                assert await refused(call)

    run(scenario())


def test_transfer_aborted_by_the_device_during_an_outage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await f.open()
            await half_way(f)
            payload = Refusal(Reason.OUT_OF_BOUNDS, "too long").to_status().SerializeToString()
            f.device().send(Kind.ABORT, payload, channel=1, id=5)
            await device_settles(f)
            assert (await refused(f.devices.Upload(iter([chunk(f, DATA[4000:], 4000)])))).reason == Reason.OUT_OF_BOUNDS
            assert not f.device().aborted

    run(scenario())


# ---- downloads ----


def download(f: Front, offset: int = 0, by: Any = None) -> Any:
    return (by or f.devices).Download(
        device_pb2.DownloadRequest(session_token=f.token, transfer=5, offset=offset, resumable=True)
    )


async def rest(call: Any, at: int) -> bytes:
    """Reads the bytes up to the end. The first chunk may begin before `at`."""
    data = bytearray()
    async for response in call:
        assert response.offset <= at + len(data) <= response.offset + len(response.data)
        data += response.data[at + len(data) - response.offset :]
    return bytes(data)


async def prepared(f: Front, size: int) -> tuple[bytes, Any]:
    """Opens a session with an Execute stream, and returns bytes that wait for a Download."""
    await f.open()
    stream, _ = await attach(f)
    await until(lambda: f.device().opened)
    data = os.urandom(size)
    f.device().provide(1, 5, data)
    return data, stream


@pytest.mark.parametrize("offset", [0, 999, 1000, 2500, 3000])
def test_a_download_continues(tmp_path: Path, offset: int) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            data, stream = await prepared(f, 20_500)
            call = download(f)
            taken = b"".join([(await call.read()).data for _ in range(3)])
            call.cancel()
            again = await rest(download(f, offset), offset)
            assert taken[:offset] + again == data
            [session] = f.daemon.sessions
            assert session.channels[0].transfers.inspect(), "kept until the client confirms that all has arrived"
            await stream.write(received(0, t5=len(data)))
            await until(lambda: not session.channels[0].transfers.inspect())
            assert not f.device().aborted

    run(scenario())


def test_a_download_that_is_displaced_in_its_first_write(tmp_path: Path) -> None:
    """The client is notified: it may be the one that continues, if the other stream is an old one that arrived late."""

    narrow = [
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 64 << 10),
        ("grpc.use_local_subchannel_pool", 1),
    ]

    async def scenario() -> None:
        async with front(tmp_path) as f:
            # More than the daemon's gRPC may send to a client that does not read, because of `narrow`.
            f.launcher.chunk = 3 << 20
            data, _ = await prepared(f, 3 << 20)
            async with grpc.aio.insecure_channel(f"unix:{f.daemon.config.unix_path}", narrow) as channel:
                old = download(f, by=device_pb2_grpc.DeviceServiceStub(channel))
                [session] = f.daemon.sessions
                transfers = session.channels[0].transfers
                await until(lambda: (flow := transfers.inspect().get(5)) and flow.handed_out)
                assert await rest(download(f), 0) == data
                async with asyncio.timeout(20):
                    with pytest.raises(grpc.aio.AioRpcError) as displaced:
                        while await old.read() is not grpc.aio.EOF:
                            pass
                assert displaced.value.code() is grpc.StatusCode.ALREADY_EXISTS

    run(scenario())


def test_acknowledged_bytes_cannot_be_downloaded_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            _, stream = await prepared(f, 20_500)
            unknown = f.devices.Download(
                device_pb2.DownloadRequest(session_token=f.token, transfer=6, offset=10, resumable=True)
            )
            assert (await ended(unknown)).reason == Reason.TRANSFER_ABORTED
            call = download(f)
            for _ in range(5):
                await call.read()
            await stream.write(received(0, t5=4000))
            [session] = f.daemon.sessions
            await until(lambda: session.channels[0].transfers.inspect()[5].kept_from == 4000)
            refusal = await ended(download(f, 3000))
            assert refusal.reason == Reason.INVALID_ARGUMENT and refusal.details["allowed"].startswith("4000 to ")
            assert len(await rest(download(f, 4500), 4500)) == 16_000

    run(scenario())


def test_kept_bytes_of_a_download_are_bounded(tmp_path: Path) -> None:
    """The device waits for the client's acknowledgement, however much the client reads. No credit is lost when a stream
    breaks."""

    async def scenario() -> None:
        async with front(tmp_path) as f:
            f.launcher.chunk = chunk = 1 << 20
            most = transfers.MAX_KEPT_BYTES // chunk + 1 + transfers.DOWNLOAD_CREDITS
            data, stream = await prepared(f, 2 * most * chunk)
            call = download(f)
            taken = bytearray()
            while f.launcher.chunks_sent < transfers.MAX_KEPT_BYTES // chunk:
                taken += (await call.read()).data
            await device_settles(f)
            sent = f.launcher.chunks_sent
            assert sent <= most
            while len(taken) < chunk * sent:
                taken += (await call.read()).data
            await device_settles(f)
            assert f.launcher.chunks_sent <= most
            while len(taken) < len(data):
                call.cancel()
                call = download(f, len(taken))
                await stream.write(received(0, t5=len(taken)))
                taken += (await call.read()).data
            assert bytes(taken) == data

    run(scenario())


def test_cancelled_download_is_aborted(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path) as f:
            await prepared(f, 100_000)
            call = download(f)
            await call.read()
            call.cancel()
            await device_settles(f)
            assert not f.device().aborted
            await status(f, give_up=True)
            await until(lambda: 5 in f.device().aborted)

    run(scenario())


def test_transfers_end_with_their_session(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with front(tmp_path, sessions__lease="0.2s") as f:
            session = await f.open_with_lease(30.0)
            await half_way(f)
            channel = session.channels[0]
            session.lease = 0.2
            await until(lambda: not len(f.daemon.sessions))
            await until(lambda: not channel.transfers.inspect())
            assert (await refused(f.devices.TransferStatus(device_pb2.TransferStatusRequest(
                session_token=f.token, transfer=5)))).reason == Reason.SESSION_EXPIRED  # fmt: skip
            assert not [task for task in asyncio.all_tasks() if "execute" in task.get_name()]

    run(scenario())
