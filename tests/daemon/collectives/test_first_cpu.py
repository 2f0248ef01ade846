"""The first collective of a CPU node with an empty cache, for which code must be compiled."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason
from hearth_proto.v1 import commands_pb2 as c
from hearthd.device.cpu.toolchain import find_toolchain
from tests.support.collectives.ranks import FLOATS, A, B, Ranks, collective, operation
from tests.support.daemon.harness import StartDaemon, on_cpu
from tests.support.held_compiler import HeldCompiler

pytestmark = on_cpu


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldCompiler]:
    """Yields a compiler that daemons started from now on use."""
    compiler = HeldCompiler(tmp_path, find_toolchain().command)
    monkeypatch.setenv("CXX", shlex.quote(str(compiler.path)))
    yield compiler
    compiler.close()


@pytest.fixture
def ranks(held: HeldCompiler, start_daemon: StartDaemon, tmp_path: Path) -> Iterator[Ranks]:
    """Yields ranks of a daemon with an empty cache."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    with Ranks(start_daemon(2, cache), 2) as session:
        yield session


def reduce(ranks: Ranks, *timeouts_ns: int) -> None:
    number = ranks.next()
    for stream, timeout_ns in zip(ranks.streams, timeouts_ns, strict=True):
        command = collective(ranks.devices, number, operation("all_reduce", A, B))
        command.collective.timeout_ns = timeout_ns
        stream.batch(command)


def test_first_compile_delays_no_other_session(held: HeldCompiler, ranks: Ranks) -> None:
    reduce(ranks, 60 * 10**9, 60 * 10**9)
    held.begun(2)
    for stream in ranks.streams:
        stream.batch(
            c.Command(create_stream=c.CreateStream(stream=5)),
            c.Command(stream=5, allocate=c.Allocate(buffer=9, size=4)),
            c.Command(stream=5, fill=c.Fill(buffer=9, size=4, pattern=b"\7")),
        )
        assert stream.ask(c.Command(stream=5, read=c.Read(buffer=9, size=4))).read.data == b"\7" * 4
    assert held.quiet(), "one process compiles for all processes"
    held.go_on(2)
    for rank, stream in enumerate(ranks.streams):
        assert ranks.data(rank, B) == [3.0] * FLOATS
        assert stream.failures() == []


@pytest.mark.parametrize("timeouts_ns", [(1, 60 * 10**9), (60 * 10**9, 1), (10**8, 10**8)])
def test_timeout_shorter_than_the_first_compile(held: HeldCompiler, ranks: Ranks, timeouts_ns: tuple[int, int]) -> None:
    """Every rank reports the timeout, whether the other ranks have arrived or not; the next operation works."""
    reduce(ranks, *timeouts_ns)
    for rank in ranks.devices:
        assert ranks.failure(rank).reason == Reason.COLLECTIVE_TIMEOUT
    held.begun(2)
    held.go_on(2)
    ranks.work()


def test_the_arithmetic_of_one_dtype_is_compiled_for_its_first_reduction(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    """Compiling the arithmetic of all dtypes takes at least 6 s, of one dtype 0.4 s."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    with Ranks(start_daemon(2, cache), 2) as ranks:
        ranks.work()
    libraries = {path.name.rpartition("-")[0] for path in cache.rglob("reduce-*") if path.is_dir()}
    assert libraries == {"reduce-float32"}
