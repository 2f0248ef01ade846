"""Shared segments: opened by other processes, refused if they are not the described ones, and removed after the last
release."""

from __future__ import annotations

import mmap
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective import shared_segment
from hearthd.device.cpu.collective.shared_exchange import SharedExchange
from hearthd.device.cpu.toolchain import find_toolchain
from hearthd.device.platform.segment_exchange import SegmentExchange
from tests.support.cpu.ranks import address


def test_nothing_stays_open() -> None:
    def open_here() -> list[str]:
        return [link for link in map(_target, Path("/proc/self/fd").iterdir()) if "hearth-exchange" in link]

    before = open_here()
    descriptor = shared_segment.create(2, find_toolchain())
    ends = [SharedExchange.attach(descriptor, rank, 2, find_toolchain()) for rank in range(2)]
    assert len(open_here()) > len(before)
    for end in ends:
        end.close()
    assert open_here() == before and "hearth-exchange" not in Path("/proc/self/maps").read_text()


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""  # the descriptor with which the directory itself was read


def test_unrelated_process_can_join() -> None:
    """Checks that an unrelated process can join, as the device process of another daemon does."""
    descriptor = shared_segment.create(2, find_toolchain())
    program = """
        import sys, numpy
        from hearthd.device.cpu.collective.shared_exchange import SharedExchange
        from hearthd.device.backend.communicator import CollectiveExchange
        from hearthd.device.cpu.toolchain import find_toolchain
        end = SharedExchange.attach(sys.argv[1].encode(), 1, 2, find_toolchain())
        x = numpy.full(300_000, 2, numpy.int64)
        product = CollectiveExchange("all_reduce", x.ctypes.data, x.ctypes.data, x.size, "int64", "prod")
        end.run(end.prepare([product]), 60.0)
        assert (x == 42).all()
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), descriptor.decode()])
    try:
        end = SharedExchange.attach(descriptor, 0, 2, find_toolchain())
        x = np.full(300_000, 21, np.int64)
        end.run(end.prepare([CollectiveExchange("all_reduce", address(x), address(x), x.size, "int64", "prod")]), 60.0)
        assert (x == 42).all()
        assert other.wait(30) == 0
        end.close()
    finally:
        other.kill()
        other.wait()


def refusal(descriptor: bytes, rank: int = 1, ranks: int = 2) -> Refusal:
    with pytest.raises(Refusal) as caught:
        SharedExchange.attach(descriptor, rank, ranks, find_toolchain())
    return caught.value


def test_a_rank_on_another_machine_is_refused() -> None:
    descriptor = shared_segment.create(2, find_toolchain())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().encode()
    assert descriptor.startswith(boot)
    other = refusal(descriptor.replace(boot, b"12345678-1234-1234-1234-123456789abc"))
    assert (
        other.reason is Reason.UNSUPPORTED and "Groups of the CPU backend are limited to one machine" in other.message
    )
    other = refusal(re.sub(rb"/\d+:", b"/1:", descriptor, count=1))  # a container on this machine
    assert other.reason is Reason.UNSUPPORTED
    shared_segment.release(descriptor)


def test_a_removed_segment_is_refused() -> None:
    descriptor = shared_segment.create(2, find_toolchain())
    shared_segment.release(descriptor)
    shared_segment.release(descriptor)
    missing = refusal(descriptor)
    assert missing.reason is Reason.COMMUNICATOR_FAILED and "cannot be opened" in missing.message
    number = int(descriptor.split(b":")[2])
    later = shared_segment.create(2, find_toolchain())  # gets the same descriptor number, and has the same size
    assert int(later.split(b":")[2]) == number
    assert refusal(descriptor).reason is Reason.COMMUNICATOR_FAILED
    shared_segment.release(later)
    plain = os.memfd_create("as large, too")
    os.ftruncate(plain, int(shared_segment.library(find_toolchain()).hearth_segment_bytes(2)))
    nonce = bytes.fromhex(descriptor.split(b":")[3].decode())
    hand_over = SegmentExchange()
    hand_over.keep(nonce, plain)
    replaced = refusal(descriptor)
    hand_over.drop(nonce)
    os.close(plain)
    assert replaced.reason is Reason.COMMUNICATOR_FAILED and "another file" in replaced.message
    assert "cannot be opened" in refusal(descriptor).message


def test_a_segment_of_another_build_is_refused() -> None:
    descriptor = shared_segment.create(2, find_toolchain())
    with mmap.mmap(int(descriptor.split(b":")[2]), 4096) as memory:
        memory[:8] = bytes(8)
        assert "another build" in refusal(descriptor).message
    shared_segment.release(descriptor)


def test_a_segment_cannot_be_truncated() -> None:
    descriptor = shared_segment.create(2, find_toolchain())
    with pytest.raises(PermissionError):
        os.ftruncate(int(descriptor.split(b":")[2]), 4096)
    shared_segment.release(descriptor)


def test_mailboxes_cost_nothing_untouched() -> None:
    """Checks that unused mailboxes take no memory: 128 ranks have 16384 of them."""
    descriptor = shared_segment.create(128, find_toolchain())
    end = SharedExchange.attach(descriptor, 127, 128, find_toolchain())
    status = os.fstat(int(descriptor.split(b":")[2]))
    assert status.st_size > 1 << 32 and status.st_blocks * 512 < 1 << 20
    end.close()


def test_invalid_numbers_of_ranks_are_refused() -> None:
    for ranks in (-1, 0, 129):
        with pytest.raises(Refusal) as caught:
            shared_segment.create(ranks, find_toolchain())
        assert caught.value.reason is Reason.INVALID_ARGUMENT
    descriptor = shared_segment.create(2, find_toolchain())
    assert refusal(descriptor, 0, 3).reason is Reason.COMMUNICATOR_FAILED
    for rank in (-1, 2):
        assert refusal(descriptor, rank).reason is Reason.INVALID_ARGUMENT
    for nonsense in (b"", b"1:2", b"\xff", descriptor[:-1], descriptor + b":1", descriptor.replace(b":", b":x", 2)):
        assert refusal(nonsense).reason is Reason.INVALID_ARGUMENT
    shared_segment.release(descriptor)
