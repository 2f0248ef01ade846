"""Libraries that groups need: only requested ones are compiled, and no other work waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hearthd.device.backend.communicator import CollectiveExchange
from hearthd.device.cpu.collective.communicators import CpuCommunicators
from hearthd.device.cpu.toolchain import Toolchain, find_toolchain
from tests.support.cpu.ranks import Array, address
from tests.support.cpu.stream_ranks import WAIT_S, pair_of
from tests.support.held_compiler import HeldCompiler


@pytest.fixture
def held(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[HeldCompiler]:
    compiler = HeldCompiler(tmp_path, find_toolchain().command, getattr(request, "param", ""))
    yield compiler
    compiler.close()


@pytest.fixture
def toolchain(held: HeldCompiler, tmp_path: Path) -> Toolchain:
    """Returns a toolchain with the held compiler and an empty cache."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    return replace(find_toolchain(), command=(str(held.path),), cache_dir=cache)


@pytest.fixture
def communicators(toolchain: Toolchain) -> CpuCommunicators:
    return CpuCommunicators(toolchain)


def summing(array: Array) -> CollectiveExchange:
    return CollectiveExchange("all_reduce", address(array), address(array), array.size, array.dtype.name, "sum")


def built_libraries(toolchain: Toolchain) -> set[str]:
    """Returns the names of the libraries in the toolchain's cache."""
    return {each.name.rpartition("-")[0] for each in toolchain.cache_dir.iterdir() if not each.name.startswith(".")}


def test_only_requested_libraries_are_compiled(
    communicators: CpuCommunicators, held: HeldCompiler, toolchain: Toolchain
) -> None:
    for op in ("sum", "max", "sum"):
        communicators.check("all_reduce", "float32", op)  # returns, although nothing is compiled yet
    held.begun(2)  # concurrently
    communicators.check("all_gather", "float16", "")
    assert held.quiet() and not built_libraries(toolchain)
    held.go_on(2)
    communicators.forget(communicators.unique_id(2))
    arrays = [np.full(7, rank + 1, np.float32) for rank in range(2)]
    ranks = pair_of(communicators)
    events = [rank.enqueue(summing(array)) for rank, array in zip(ranks, arrays, strict=True)]
    for rank, event in zip(ranks, events, strict=True):
        rank.reached(event)
        assert rank.communicator.failure_reason() == ""
        rank.close()
    assert all((array == 3).all() for array in arrays)
    assert built_libraries(toolchain) == {"exchange", "reduce-float32"}


def test_an_abort_does_not_wait_for_the_compiler(communicators: CpuCommunicators, held: HeldCompiler) -> None:
    held.go_on(1)  # the library that joining needs
    one, other = pair_of(communicators)
    held.begun(1)
    array = np.ones(7, np.int16)
    event = one.enqueue(summing(array))
    held.begun(1)
    aborting = threading.Thread(target=one.communicator.abort)
    aborting.start()
    aborting.join(WAIT_S)
    assert not aborting.is_alive() and not event.done
    held.go_on(1)
    one.reached(event)
    assert "was aborted" in one.communicator.failure_reason() and (array == 1).all()
    one.close()
    other.close()


@pytest.mark.parametrize("held", ["reduce-uint8"], indirect=True)
def test_arithmetic_that_cannot_be_compiled(communicators: CpuCommunicators, held: HeldCompiler) -> None:
    """Checks that the operation fails on every rank, and that the streams and devices continue."""
    held.go_on(1)
    ranks = pair_of(communicators)
    communicators.check("reduce", "uint8", "sum")  # preparing the library reports no error
    events = [rank.enqueue(summing(np.ones(7, np.uint8))) for rank in ranks]
    for rank, event in zip(ranks, events, strict=True):
        rank.reached(event)
    reasons = [rank.communicator.failure_reason() for rank in ranks]
    assert all(reasons) and any("cannot compile" in reason for reason in reasons), reasons
    for rank in ranks:
        rank.close()


def test_a_library_that_is_broken(communicators: CpuCommunicators, held: HeldCompiler, toolchain: Toolchain) -> None:
    """A broken library fails the operation, and the error names the file to be removed."""
    held.go_on(1)
    ranks = pair_of(communicators)
    broken = toolchain.cache_dir / f"reduce-int8-{toolchain.identity().hex()[:24]}"
    broken.mkdir()
    (broken / "reduce-int8.so").write_bytes(b"cut short")
    events = [rank.enqueue(summing(np.ones(7, np.int8))) for rank in ranks]
    for rank, event in zip(ranks, events, strict=True):
        rank.reached(event)
    assert any(str(broken / "reduce-int8.so") in rank.communicator.failure_reason() for rank in ranks)
    for rank in ranks:
        rank.close()


def test_missing_cache_directory(communicators: CpuCommunicators, held: HeldCompiler, toolchain: Toolchain) -> None:
    """Checks that a cache that the operating system refuses fails the operation."""
    held.go_on(1)
    ranks = pair_of(communicators)
    toolchain.cache_dir.rename(toolchain.cache_dir.with_name("elsewhere"))
    waits = ranks[1].enqueue(CollectiveExchange("barrier"))
    failed = ranks[0].enqueue(summing(np.ones(7, np.uint8)))
    for rank, event in zip(ranks, (failed, waits), strict=True):
        rank.reached(event)
    assert (
        "No such file" in ranks[0].communicator.failure_reason()
        and "was aborted" in ranks[1].communicator.failure_reason()
    )
    for rank in ranks:
        rank.close()
