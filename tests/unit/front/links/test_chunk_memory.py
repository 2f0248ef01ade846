"""The front's end of the memory for chunks: the message made from a slot, and that nothing is kept."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from hearth_proto import descriptors, frames
from hearth_proto.chunks import download_head, download_response
from hearth_proto.frames import SLOT, Flag, Frame, Kind
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.links.fd_passing import Descriptors
from hearthd.front.links.link import DeviceLink
from hearthd.front.sessions.channel import Channel
from hearthd.front.sessions.session_table import SessionTable
from hearthd.shared import chunk_ring
from hearthd.shared.chunk_ring import Layout
from tests.support.front.fixture import run

CHUNK = 64 << 10
LOSS = Refusal(Reason.DEVICE_LOST, "gone")
LAST = int(Flag.LAST)


class End(NamedTuple):
    """The device process's end of a link."""

    link: DeviceLink
    sock: socket.socket
    files: socket.socket
    """The socket for descriptors, in addition to the link."""

    def receive_memory(self) -> tuple[Layout, mmap.mmap]:
        """Receives the file that the front has handed over."""
        message = descriptors.receive(self.files)
        assert message is not None
        body, [file] = message
        assert body["kind"] == chunk_ring.FILE
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        layout = chunk_ring.from_message(body)
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(file, layout.bytes // 2)
        memory = mmap.mmap(file, layout.bytes)
        os.close(file)
        return layout, memory

    def chunk(self, channel: int, transfer: int, slot: int, size: int, offset: int = 0, flags: int = 0) -> None:
        payload = SLOT.pack(slot, size) + download_head(offset, size)
        flags |= Flag.SLOT
        self.sock.send(frames.encode(Kind.CHUNK, payload, channel=channel, id=transfer, flags=flags))

    async def receive(self, kind: int) -> Frame:
        """Returns the next frame of this kind; frames of other kinds are dropped."""
        reader, loop = frames.FrameReader(), asyncio.get_running_loop()
        while True:
            for frame in reader.feed(await loop.sock_recv(self.sock, 1 << 16)):
                if frame.kind == kind:
                    return frame


def count_mappings() -> int:
    """Returns the number of mappings of chunk memory in this process, and of its open files."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    files = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            files += "hearth-chunk-slots" in str(entry.readlink())
        except OSError:  # the descriptor that lists the directory
            continue
    return sum("hearth-chunk-slots" in line for line in lines) + files


@asynccontextmanager
async def linked(chunk_bytes: int = CHUNK) -> AsyncIterator[End]:
    front_end, device_end = socket.socketpair()
    device_end.setblocking(False)
    front_files, device_files = descriptors.pair()
    device_files.setblocking(False)
    link = DeviceLink(0, 1)
    link.descriptors = Descriptors(front_files, 0)
    link.share_chunks(chunk_bytes)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=front_end)
    try:
        yield End(link, device_end, device_files)
    finally:
        link.fail(LOSS, [])
        link.descriptors.close()
        device_end.close()
        device_files.close()
        await asyncio.sleep(0)  # the front's end is closed here; the next test uses the same event loop


def opened(link: DeviceLink) -> Channel:
    return link.open_channel(SessionTable().open("test", "0")[0])


def test_a_chunk_is_copied_from_its_slot_which_is_free_immediately() -> None:
    async def scenario() -> None:
        async with linked() as end:
            channel, (layout, memory) = opened(end.link), end.receive_memory()
            assert layout.slot_bytes == CHUNK
            flow = channel.transfers.download(7)
            data = os.urandom(CHUNK)
            memory[layout.start(3) : layout.start(4)] = data
            end.chunk(channel.number, 7, 3, CHUNK)
            assert (await end.receive(Kind.SLOTS)).id == 1 << 3
            # The device reuses the slot while the message is still unread.
            memory[layout.start(3) : layout.start(4)] = bytes(CHUNK)
            end.chunk(channel.number, 7, 3, CHUNK - 1, offset=CHUNK, flags=LAST)
            message, last = await flow.receive()
            offset, got = download_response(message)
            assert (offset, bytes(got), last) == (0, data, False)
            message, last = await flow.receive()
            assert download_response(message) == (CHUNK, bytes(CHUNK - 1)) and last
            memory.close()

    run(scenario())


def test_chunks_over_memory_and_socket_keep_their_order() -> None:
    async def scenario() -> None:
        async with linked() as end:
            channel, (layout, memory) = opened(end.link), end.receive_memory()
            flow = channel.transfers.download(7)
            for number in range(layout.slots):
                memory[layout.start(number) : layout.start(number) + 1] = bytes([number])
                end.chunk(channel.number, 7, number, 1, offset=2 * number)
                plain = download_head(2 * number + 1, 1) + bytes([100 + number])
                end.sock.send(frames.encode(Kind.CHUNK, plain, channel=channel.number, id=7))
            for number in range(layout.slots):
                assert download_response((await flow.receive())[0]) == (2 * number, bytes([number]))
                assert download_response((await flow.receive())[0]) == (2 * number + 1, bytes([100 + number]))
            memory.close()

    run(scenario())


def test_an_unwanted_chunk_leaves_its_slot() -> None:
    """Covers a channel that the front does not know, and a transfer that it has aborted."""

    async def scenario() -> None:
        async with linked() as end:
            channel = opened(end.link)
            end.chunk(99, 7, 2, CHUNK)
            assert (await end.receive(Kind.SLOTS)).id == 1 << 2
            flow = channel.transfers.download(7)
            flow.close(Refusal(Reason.TRANSFER_ABORTED, "its client has gone"))
            end.chunk(channel.number, 7, 15, CHUNK)
            assert (await end.receive(Kind.SLOTS)).id == 1 << 15
            assert not end.link.closed.done()

    run(scenario())


@pytest.mark.parametrize(
    "payload",
    [b"", SLOT.pack(0, CHUNK)[:7], SLOT.pack(16, 1), SLOT.pack(0, CHUNK + 1), SLOT.pack(0xFFFFFFFF, 0xFFFFFFFF)],
)
def test_invalid_slot_ends_the_link(payload: bytes) -> None:
    async def scenario() -> None:
        async with linked() as end:
            channel = opened(end.link)
            valid = SLOT.pack(0, 1) + download_head(0, 1)
            for chunk in (payload, valid):  # frames after the invalid one have no further effect
                end.sock.send(frames.encode(Kind.CHUNK, chunk, channel=channel.number, id=7, flags=Flag.SLOT))
            assert "cannot be read" in await end.link.closed

    run(scenario())


@pytest.mark.parametrize("chunk_bytes", [CHUNK - 1, 4096])
def test_small_chunks_need_no_memory(chunk_bytes: int) -> None:
    async def scenario() -> None:
        async with linked(chunk_bytes) as end:
            with pytest.raises(BlockingIOError):
                descriptors.receive(end.files)
            assert count_mappings() == 0

    run(scenario())


def test_a_process_without_chunk_memory_may_not_name_a_slot() -> None:
    async def scenario() -> None:
        async with linked(4096) as end:
            end.chunk(1, 7, 0, 1)
            assert "cannot be read" in await end.link.closed

    run(scenario())


def test_chunk_memory_is_freed_with_its_link() -> None:
    async def scenario() -> None:
        async with linked() as end:
            channel, (_, memory) = opened(end.link), end.receive_memory()
            memory.close()
            flow = channel.transfers.download(7)
            end.chunk(channel.number, 7, 0, CHUNK)
            await flow.receive()
            assert count_mappings() > 0
            end.sock.close()
            await end.link.closed
            assert count_mappings() == 0
        async with linked():
            pass
        assert count_mappings() == 0

    run(scenario())


def resident() -> int:
    """Returns the KiB of chunk memory that count as this process's memory."""
    kibibytes, is_chunk_memory = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name:
            is_chunk_memory = "hearth-chunk-slots" in line
        elif is_chunk_memory and name == "Rss":
            kibibytes += int(value.split()[0])
    return kibibytes


def test_chunk_memory_of_an_unused_front_takes_no_memory() -> None:
    async def scenario() -> None:
        async with linked() as end:
            assert resident() == 0
            channel, closed = opened(end.link), asyncio.Event()
            end.link.on_last_channel_closed = closed.set
            flow = channel.transfers.download(7)
            end.chunk(channel.number, 7, 0, CHUNK)
            await flow.receive()
            assert resident() >= CHUNK >> 10
            end.sock.send(frames.encode(Kind.CLOSED, channel=channel.number))
            await closed.wait()
            assert resident() == 0

    run(scenario())


def test_chunks_use_the_socket_without_memfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")

    async def scenario() -> None:
        async with linked() as end:
            channel = opened(end.link)
            with pytest.raises(BlockingIOError):
                descriptors.receive(end.files)
            flow = channel.transfers.download(7)
            plain = download_head(0, 3) + b"abc"
            end.sock.send(frames.encode(Kind.CHUNK, plain, channel=channel.number, id=7, flags=LAST))
            assert await flow.receive() == (plain, True)
            assert count_mappings() == 0

    run(scenario())


def test_a_hand_over_that_fails_leaves_nothing() -> None:
    async def scenario() -> None:
        link = DeviceLink(0, 1)
        front_end, device_end = descriptors.pair()
        device_end.close()
        link.descriptors = Descriptors(front_end, 0)
        link.share_chunks(CHUNK)
        assert count_mappings() == 0
        link.descriptors.close()
        link.share_chunks(CHUNK)
        assert count_mappings() == 0

    run(scenario())
