"""The compile cache: content-addressed, authenticated and bounded, and never a reason for a failure."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearthd.device.backend.compiler import Assembly, Image, Job, LinkJob, Source
from hearthd.device.compiler.cache import MAX_ENTRY_BYTES, CompileCache, cache_directory, key
from hearthd.device.compiler.cancel_token import CancelToken
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.service import Compiled, CompileService
from tests.support.privileges import obeying

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


def test_bytes_in_another_field_make_another_key() -> None:
    """Checks that keys differ if the same characters in the same order are divided differently among code, options,
    expressions and headers."""
    draw = random.Random(4096)

    def divided(parts: list[str]) -> Source:
        bounds = [0, *sorted(draw.randint(0, len(parts)) for _ in range(3)), len(parts)]
        code, options, names, rest = (tuple(parts[a:b]) for a, b in itertools.pairwise(bounds))
        return Source("".join(code), options, names, tuple(zip(rest[::2], rest[1::2], strict=False)))

    same = 0
    for _ in range(4096):
        parts = ["".join(draw.choices("ab\0", k=draw.randint(0, 3))) for _ in range(draw.randint(1, 6))]
        one, other = divided(parts), divided(parts)
        assert (key(one, b"i") == key(other, b"i")) == (one == other), (one, other)
        same += one == other
    assert 0 < same < 4096


@given(st.binary(max_size=8), texts, st.binary(max_size=4))
def test_assembly_and_source_never_share_a_key(code: bytes, text: str, identity: bytes) -> None:
    assert key(Assembly(code), identity) != key(Source(text), identity)
    assert key(Assembly(code), identity) != key(Assembly(code + b"x"), identity)
    assert key(Assembly(code), identity) != key(Assembly(code), identity + b"x")


def test_a_link_has_a_key_of_all_its_inputs() -> None:
    one, other = Source("a"), Source("b")
    links = [
        LinkJob((one,)), LinkJob((one, other)), LinkJob((other, one)), LinkJob((one, Assembly(b"b"))),
        LinkJob((one, one, other)), LinkJob((one, other), ("-dlto",)), LinkJob((one, Source("b", ("-DN",)))),
        LinkJob((one, Source("b", headers=(("h", ""),)))),
    ]  # fmt: skip
    keys = {key(link, b"i") for link in links} | {key(LinkJob((one,)), b"j"), key(one, b"i")}
    assert len(keys) == len(links) + 2


def test_round_trip(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path), 1 << 20)
    assert cache.load(NAME) is None
    cache.store(NAME, IMAGE)
    assert cache.load(NAME) == IMAGE


def test_corrupt_entry_is_a_miss_and_is_removed(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path), 1 << 20)
    cache.store(NAME, IMAGE)
    path = tmp_path / "ab" / NAME
    content = path.read_bytes()
    for damaged in (b"", content[:-1], content[:60], b"x" + content[1:], content[:-3] + b"zzz"):
        path.write_bytes(damaged)
        assert cache.load(NAME) is None
        assert not path.exists()


def test_an_entry_cut_anywhere_is_a_miss(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path), 1 << 20)
    cache.store(NAME, IMAGE)
    path = tmp_path / "ab" / NAME
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert cache.load(NAME) is None, length
    path.write_bytes(content)
    assert cache.load(NAME) == IMAGE


def test_an_entry_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    cache = CompileCache(str(tmp_path), 1 << 20)
    path = tmp_path / "ab" / NAME
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(MAX_ENTRY_BYTES + 1)  # a sparse file, which would fill the process's memory if it were read
    tracemalloc.start()
    assert cache.load(NAME) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("mode", [0o500, 0o000], ids=["read-only", "closed"])
def test_inaccessible_directory_is_not_an_error(tmp_path: Path, mode: int) -> None:
    script = """
import sys, threading
from hearthd.device.compiler.cache import CompileCache
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.service import CompileService
from hearthd.device.backend.compiler import Image, Source
class Runner:
    ready = release_idle = close = lambda *_: None
    identity = lambda self, job: b"i"
    run = lambda self, job, token: Image(b"made")
landed = threading.Event()
def post(task): task(); landed.set()
done = []
service = CompileService(CachedImages(Runner(), CompileCache(sys.argv[1], 1 << 20)), 1, post)
service.submit(Source("x"), done.append)
assert landed.wait(10) and done[0].image == Image(b"made") and not done[0].cached, done
"""
    directory = tmp_path / "cache"
    directory.mkdir()
    directory.chmod(mode)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    completed = subprocess.run(
        obeying(sys.executable, "-c", script, str(directory)),
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    directory.chmod(0o700)
    assert completed.returncode == 0, completed.stderr
    assert list(directory.iterdir()) == []


def test_unwritable_directory_is_not_an_error(tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("in the way")
    cache = CompileCache(str(file), 1 << 20)
    cache.store(NAME, IMAGE)
    assert cache.load(NAME) is None
    with cache.single_flight(NAME, CancelToken().check):
        pass


def test_oldest_entry_is_evicted_from_a_full_cache(tmp_path: Path) -> None:
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


def test_used_entries_are_not_evicted(tmp_path: Path) -> None:
    """Checks that entries are removed by the time of their last use, not of their creation."""
    cache = CompileCache(str(tmp_path), 3500)
    names = [f"{number:02x}" + "1" * 62 for number in range(3)]
    for number, name in enumerate(names):
        cache.store(name, Image(code=bytes(1000)))
        os.utime(tmp_path / name[:2] / name, (number, number))
    assert cache.load(names[0]) is not None
    cache.store("fe" + "1" * 62, Image(code=bytes(1000)))
    assert [cache.load(name) is not None for name in names] == [True, False, True]


def test_two_processes_compile_once(tmp_path: Path) -> None:
    """Makes both processes miss before either compiles."""
    script = """
import sys, threading, time
from pathlib import Path
from hearthd.device.compiler.cache import CompileCache
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.service import CompileService
from hearthd.device.backend.compiler import Image, Source
folder = Path(sys.argv[1])
class Runner:
    ready = release_idle = close = lambda *_: None
    identity = lambda self, job: b"i"
    def run(self, job, token):
        with open(folder / "compiles", "a") as file: file.write("x")
        while len(list(folder.glob("here-*"))) < 2: time.sleep(0.005)
        return Image(b"made")
landed = threading.Event()
def post(task): task(); landed.set()
done = []
service = CompileService(CachedImages(Runner(), CompileCache(str(folder / "cache"), 1 << 20)), 1, post)
(folder / ("here-" + sys.argv[2])).touch()
service.submit(Source("x"), done.append)
assert landed.wait(20) and done[0].image == Image(b"made"), done
print(done[0].cached)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(2)
    ]
    cached = sorted(process.communicate(timeout=30)[0].strip() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert (tmp_path / "compiles").read_text() == "x"
    assert cached == ["False", "True"]


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert cache_directory(str(tmp_path)) == ""
    tmp_path.chmod(0o700)
    assert cache_directory(str(tmp_path)) == str(tmp_path)
    assert cache_directory("") == ""


class CountingRunner:
    """Replaces the compile workers; compiles when the test allows it."""

    def __init__(self) -> None:
        self.compiles = 0
        self.cancelled: list[Job] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.lock = threading.Lock()

    def ready(self) -> None:
        pass

    def identity(self, job: Job) -> bytes:
        return b"test"

    def run(self, job: Job, token: CancelToken) -> Image:
        with self.lock:
            self.compiles += 1
        self.begun.release()
        with token.on_cancel(lambda: self.cancelled.append(job)):
            assert self.go.wait(10)
        assert not isinstance(job, LinkJob)
        code = job.code if isinstance(job, Assembly) else job.code.encode()
        if code == b"crash":
            raise OSError("the compiler is gone")
        return Image(code=code)

    def release_idle(self) -> None:
        pass

    def close(self) -> None:
        self.go.set()


class Poster:
    """Replaces the loop: runs posted tasks on the test's thread."""

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
    compiler, post = CountingRunner(), Poster()
    services = [CompileService(CachedImages(compiler, CompileCache(str(tmp_path), 1 << 20)), 2, post) for _ in range(2)]
    outcomes: list[Compiled] = []
    for _ in range(8):
        for service in services:
            service.submit(Source("same"), outcomes.append)
    compiler.go.set()
    post.run(2)
    assert len(outcomes) == 16
    assert compiler.compiles == 1
    assert all(outcome.image == Image(code=b"same") for outcome in outcomes)
    services[0].submit(Source("same"), outcomes.append)
    assert outcomes[-1].cached and outcomes[-1].elapsed_ns == 0
    for service in services:
        service.close()


def test_compile_that_waits_for_another_process_is_cancelled(tmp_path: Path) -> None:
    """Holds the lock in one cache, as another process does, while a compile with the other cache waits for it."""
    runner, post = CountingRunner(), Poster()
    service = CompileService(CachedImages(runner, CompileCache(str(tmp_path), 1 << 20)), 1, post)
    holder = CompileCache(str(tmp_path), 1 << 20)
    called: list[Compiled] = []
    with holder.single_flight(key(Source("same"), b"test"), CancelToken().check):
        (lock,) = tmp_path.glob("??/*.lock")
        service.submit(Source("same"), called.append)
        service.submit(Source("other"), called.append, "other")
        assert runner.begun.acquire(timeout=10), "the other session's compile runs while the first one waits"
        service.abandon(Source("same"), called.append)
        post.run(1)
        assert not called, "the cancelled compile ends first"
        assert lock.exists(), "the other process still compiles"
    assert not lock.exists()
    service.close()


def test_a_compiler_that_breaks_fails_the_module_only(tmp_path: Path) -> None:
    compiler, post = CountingRunner(), Poster()
    compiler.go.set()
    service = CompileService(CachedImages(compiler, CompileCache("", 0)), 1, post)
    outcomes: list[Compiled] = []
    service.submit(Source("crash"), outcomes.append)
    post.run(1)
    assert outcomes[0].error is not None and "the compiler is gone" in outcomes[0].error.message
    service.submit(Source("fine"), outcomes.append)
    post.run(1)
    assert outcomes[1].image == Image(code=b"fine")
    service.close()


def test_flood_of_one_owner_does_not_delay_another(tmp_path: Path) -> None:
    runner, post = CountingRunner(), Poster()
    service = CompileService(CachedImages(runner, CompileCache("", 0)), 2, post)
    outcomes: list[Compiled] = []
    for number in range(6):
        service.submit(Source(f"flood {number}"), outcomes.append, "flood")
    for _ in range(2):
        assert runner.begun.acquire(timeout=10)
    service.submit(Source("mine"), outcomes.append, "other")
    assert runner.begun.acquire(timeout=10)
    assert runner.compiles == 3, "two compiles of the flood, and that of the other owner"
    runner.go.set()
    post.run(7)
    assert {outcome.image.code for outcome in outcomes if outcome.image} == {
        b"mine", *(f"flood {number}".encode() for number in range(6))
    }  # fmt: skip
    service.close()


def test_unawaited_compile_is_removed_or_stopped(tmp_path: Path) -> None:
    runner, post = CountingRunner(), Poster()
    service = CompileService(CachedImages(runner, CompileCache("", 0)), 1, post)
    called: list[str] = []
    callbacks = {name: (lambda _outcome, name=name: called.append(name)) for name in ("a", "b", "shared 1", "shared 2")}
    service.submit(Source("a"), callbacks["a"])
    assert runner.begun.acquire(timeout=10)
    service.submit(Source("b"), callbacks["b"])
    service.submit(Source("shared"), callbacks["shared 1"])
    service.submit(Source("shared"), callbacks["shared 2"])
    service.abandon(Source("a"), callbacks["a"])
    assert runner.cancelled == [Source("a")]
    service.abandon(Source("b"), callbacks["b"])
    service.abandon(Source("shared"), callbacks["shared 1"])
    service.abandon(Source("never submitted"), callbacks["a"])
    assert runner.cancelled == [Source("a")], "a queued compile has no process to stop"
    runner.go.set()
    post.run(2)
    assert called == ["shared 2"] and runner.compiles == 2
    service.close()
