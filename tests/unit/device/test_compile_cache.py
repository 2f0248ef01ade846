"""The cache is content-addressed, checksummed and bounded, and never a reason to fail."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.compile_cache import CompileCache, key
from hearthd.device.compiler import Compiled, CompileService
from hearthd.device.modules import cache_directory
from hearthd.device.server import Image, Source

IMAGE = Image(code=b"\x7fELF" + bytes(range(256)), names={"f<int>": "_Z1fIiE"}, log="a warning")
NAME = "ab" + "0" * 62

texts = st.text(max_size=6)
sources = st.builds(
    Source,
    code=texts,
    options=st.lists(texts, max_size=3).map(tuple),
    name_expressions=st.lists(texts, max_size=3).map(tuple),
    headers=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
)


@given(sources, sources, st.binary(max_size=4), st.binary(max_size=4))
def test_keys_differ_exactly_when_the_inputs_do(a: Source, b: Source, one: bytes, two: bytes) -> None:
    assert (key(a, one) == key(b, two)) == ((a, one) == (b, two))


def test_round_trip(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path), 1 << 20)
    assert cache.load(NAME) is None
    cache.store(NAME, IMAGE)
    assert cache.load(NAME) == IMAGE


def test_corruption_is_a_miss_and_is_cleared_away(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path), 1 << 20)
    cache.store(NAME, IMAGE)
    path = tmp_path / "ab" / NAME
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:60], b"x" + whole[1:], whole[:-3] + b"zzz"):
        path.write_bytes(damaged)
        assert cache.load(NAME) is None
        assert not path.exists()


def test_a_directory_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("in the way")
    cache = CompileCache(str(file), 1 << 20)
    cache.store(NAME, IMAGE)
    assert cache.load(NAME) is None
    with cache.single_flight(NAME):
        pass


def test_the_oldest_goes_when_it_is_full(tmp_path: Path) -> None:
    image = Image(code=bytes(1000))
    cache = CompileCache(str(tmp_path), 3500)
    names = [f"{number:02x}" + "0" * 62 for number in range(5)]
    for number, name in enumerate(names):
        cache.store(name, image)
        os.utime(tmp_path / name[:2] / name, (number, number))
    cache.store("ff" + "0" * 62, image)
    assert cache.load(names[0]) is None
    assert cache.load("ff" + "0" * 62) is not None
    assert sum(path.stat().st_size for path in tmp_path.glob("??/*")) <= 3500


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert cache_directory(str(tmp_path)) == ""
    tmp_path.chmod(0o700)
    assert cache_directory(str(tmp_path)) == str(tmp_path)
    assert cache_directory("") == ""


class CountingCompiler:
    def __init__(self) -> None:
        self.compiles = 0
        self.go = threading.Event()
        self.lock = threading.Lock()

    def identity(self) -> bytes:
        return b"test"

    def compile(self, source: Source) -> Image:
        with self.lock:
            self.compiles += 1
        assert self.go.wait(10)
        if source.code == "crash":
            raise OSError("the compiler is gone")
        return Image(code=source.code.encode())


class Poster:
    """Stands for the loop: runs what is posted on the thread of the test."""

    def __init__(self) -> None:
        self.tasks: list[object] = []
        self.some = threading.Condition()

    def __call__(self, task: object) -> None:
        with self.some:
            self.tasks.append(task)
            self.some.notify()

    def run(self, count: int) -> None:
        for _ in range(count):
            with self.some:
                assert self.some.wait_for(lambda: self.tasks, 10)
                task = self.tasks.pop(0)
            task()  # type: ignore[operator]


def test_single_flight_in_the_process_and_across_caches(tmp_path: Path) -> None:
    compiler, post = CountingCompiler(), Poster()
    services = [CompileService(compiler, CompileCache(str(tmp_path), 1 << 20), 2, post) for _ in range(2)]
    done: list[Compiled] = []
    for _ in range(8):
        for service in services:
            service.submit(Source("same"), done.append)
    compiler.go.set()
    post.run(2)
    assert len(done) == 16
    assert compiler.compiles == 1
    assert all(outcome.image == Image(code=b"same") for outcome in done)
    services[0].submit(Source("same"), done.append)
    assert done[-1].cached and done[-1].elapsed_ns == 0
    for service in services:
        service.close()


def test_a_compiler_that_breaks_fails_the_module_only(tmp_path: Path) -> None:
    compiler, post = CountingCompiler(), Poster()
    compiler.go.set()
    service = CompileService(compiler, CompileCache("", 0), 1, post)
    done: list[Compiled] = []
    service.submit(Source("crash"), done.append)
    post.run(1)
    assert done[0].error is not None and "the compiler is gone" in done[0].error.message
    service.submit(Source("fine"), done.append)
    post.run(1)
    assert done[1].image == Image(code=b"fine")
    service.close()
