"""Compile workers, with the C++ compiler of this machine: limits, crashes, and no remaining processes or files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Assembly, Image, Source
from hearthd.device.broker.worker_entry import cpu_worker
from hearthd.device.compiler.cancel_token import CancelToken
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.cpu.toolchain import find_toolchain
from hearthd.device.platform.sandbox import PR_SET_CHILD_SUBREAPER, adopt_orphans
from tests.support.timing import LATE

FINE = Source('extern "C" __global__ void f(int* x) { *x = 1; }')
SLOW = Source("""
template <int A, int B> struct F { static const int v = F<A - 1, B * 2>::v + F<A - 1, B * 2 + 1>::v; };
template <int B> struct F<0, B> { static const int v = 1; };
extern "C" __global__ void f(int* x) { *x = F<30, 0>::v; }
""")
"""Source with 2^30 instantiations: it never finishes, and needs little memory for some seconds."""
LAUGHS = Source(
    "#define A0 x += 1; x *= 3;\n"
    + "".join(f"#define A{n} {f'A{n - 1} ' * 10}\n" for n in range(1, 10))
    + 'extern "C" __global__ void f(int* p) { int x = *p; A9 *p = x; }'
)
LARGE = Source('__device__ int a[1 << 22] = {1};\nextern "C" __global__ void f(int* x) { *x = a[5]; }')


@pytest.fixture
def make() -> Iterator[Callable[..., CompileWorkers]]:
    made: list[CompileWorkers] = []

    def workers(seconds: float = 60, memory: int = 1 << 30, file_bytes: int = 64 << 20, **more: Any) -> CompileWorkers:
        pool = CompileWorkers(cpu_worker, CompileLimits(seconds, memory, file_bytes), **more)
        made.append(pool)
        pool.set_compiler(CpuCompiler())
        return pool

    yield workers
    for pool in made:
        pids = pool.pids()
        pool.close()
        assert not [pid for pid in pids if running(pid)]
        assert pool.pids() == []


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return value


def refusal(pool: CompileWorkers, source: Source | Assembly) -> Refusal:
    with pytest.raises(Refusal) as caught:
        pool.run(source)
    return caught.value


def works(pool: CompileWorkers) -> None:
    assert pool.run(FINE).code.startswith(b"\x7fELF")


class Running:
    """A compile on a separate thread."""

    def __init__(self, pool: CompileWorkers, source: Source) -> None:
        self.outcome: Image | BaseException | None = None
        self._pool, self._source = pool, source
        self.token = CancelToken()
        self._thread = threading.Thread(target=self._main)
        self._thread.start()
        (self.worker,) = until(pool.pids)
        self.compiler: int = until(lambda: compiler_of(self.worker))

    def _main(self) -> None:
        try:
            self.outcome = self._pool.run(self._source, self.token)
        except BaseException as error:
            self.outcome = error

    def refusal(self) -> Refusal:
        self._thread.join(30)
        assert isinstance(self.outcome, Refusal), self.outcome
        return self.outcome


def compiler_of(group: int) -> int:
    """Returns the process ID of the compiler proper in the worker's group; 0 if there is none. Ignores the compiler
    that only expands macros, because it may end before a signal arrives."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                command, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
                if command == "cc1plus" and int(rest.split()[2]) == group and rest.split()[0] != "Z":
                    arguments = (entry / "cmdline").read_bytes().split(b"\0")
                    if b"-E" not in arguments and len(arguments) > 1:
                        return int(entry.name)
    return 0


def test_one_worker_serves_several_jobs(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    pool.warm()
    pids = pool.pids()
    pool.ready()
    for _ in range(2):
        works(pool)
    error = refusal(pool, Source("int a;\nint b = c;\n"))
    assert error.reason is Reason.COMPILE_FAILED and "kernel.cu(2)" in error.details["log"]
    works(pool)
    assert pool.pids() == pids and len(pids) == 1
    source = Source(
        '#include "mine/value.h"\ntemplate <class T> __global__ void f(T* x) { *x = VALUE; }',
        ("-DVALUE=N",), ("f<int>",), (("mine/value.h", "#define N 3 // \N{GREEK SMALL LETTER PI}\n"),),
    )  # fmt: skip
    assert b"f<int>" in pool.run(source).code


@pytest.mark.parametrize(
    ("limits", "source", "limit"),
    [
        ({"seconds": 0.7}, SLOW, "time"),
        ({"memory": 160 << 20}, LAUGHS, "memory"),
        ({"file_bytes": 4 << 20}, LARGE, "file"),
    ],
    ids=["time", "memory", "file"],
)
def test_a_limit_costs_one_compile(
    make: Callable[..., CompileWorkers], limits: dict[str, Any], source: Source, limit: str
) -> None:
    pool = make(**limits)
    started = time.monotonic()
    error = refusal(pool, source)
    assert error.reason is Reason.COMPILE_LIMIT and error.details["limit"] == limit
    assert error.details["allowed"] == str(next(iter(limits.values())))
    assert time.monotonic() - started < 4 * LATE
    pool.limits = replace(pool.limits, seconds=60)  # a correct source may take a second on a busy machine, too
    works(pool)


def test_a_worker_that_crashes_costs_one_compile(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    for number in (signal.SIGSEGV, signal.SIGKILL):
        job = Running(pool, SLOW)
        os.kill(job.worker, number)
        error = job.refusal()
        assert error.reason is Reason.COMPILE_FAILED
        assert error.details["signal"] == signal.Signals(number).name and signal.Signals(number).name in error.message
        until(lambda pid=job.compiler: not running(pid))
        works(pool)


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL])
def test_a_compiler_that_crashes_is_named(make: Callable[..., CompileWorkers], number: signal.Signals) -> None:
    pool = make(memory=8 << 30)  # so that the memory limit does not end it, however late the signal arrives
    for _ in range(10):
        job = Running(pool, SLOW)
        os.kill(job.compiler, number)
        error = job.refusal()
        assert error.reason is Reason.COMPILE_FAILED and error.details["signal"] in error.message
        # its own handler allocates memory, which aborts if an allocation was in progress
        if error.details["signal"] != "SIGABRT":
            break
    assert error.details["signal"] == number.name
    works(pool)


def test_a_worker_that_died_while_idle_costs_nothing(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    works(pool)
    (pid,) = pool.pids()
    os.kill(pid, signal.SIGKILL)
    works(pool)
    assert pool.pids() != [pid]


def test_a_compile_can_be_cancelled(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    job = Running(pool, SLOW)
    started = time.monotonic()
    job.token.cancel()
    assert job.refusal().reason is Reason.CANCELLED
    assert time.monotonic() - started < LATE
    until(lambda: not running(job.compiler))
    works(pool)


def test_compile_that_is_cancelled_before_it_starts_has_no_worker(make: Callable[..., CompileWorkers]) -> None:
    pool, token = make(), CancelToken()
    token.cancel()
    with pytest.raises(Refusal) as caught:
        pool.run(SLOW, token)
    assert caught.value.reason is Reason.CANCELLED
    assert pool.pids() == []
    works(pool)


def test_compile_can_be_cancelled_while_its_worker_starts(make: Callable[..., CompileWorkers]) -> None:
    pool, token = make(), CancelToken()

    def cancel() -> None:
        until(pool.pids)
        token.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(Refusal) as caught:
        pool.run(SLOW, token)
    thread.join()
    assert caught.value.reason is Reason.CANCELLED
    works(pool)


def test_spare_workers_end(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    pool.warm()
    pool.warm()
    works(pool)
    assert len(pool.pids()) == 2
    pool.release_idle()
    assert len(pool.pids()) == 1
    works(pool)


def test_close_stops_running_compiles(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    job = Running(pool, SLOW)
    pool.close()
    assert job.refusal().reason is Reason.CANCELLED
    until(lambda: not running(job.compiler))


def test_removed_prelude_directory_is_created_again(tmp_path: Path) -> None:
    pool = CompileWorkers(cpu_worker, CompileLimits(60, 1 << 30))
    compiler = CpuCompiler(str(tmp_path))
    pool.set_compiler(compiler)
    try:
        works(pool)
        preludes = compiler.toolchain().preludes()
        subprocess.run(["rm", "-r", str(preludes)], check=True)
        works(pool)
    finally:
        pool.close()


def test_the_cpu_backend_assembles_nothing(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    with pytest.raises(Refusal) as caught:
        pool.identity(Assembly(b".version 8.0"))
    assert caught.value.reason is Reason.NO_COMPILER


@pytest.fixture
def adopting() -> Iterator[None]:
    """Makes this process adopt orphans, as a device process does."""
    adopt_orphans()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.usefixtures("adopting")
def test_remaining_processes_of_a_compiler_are_reaped(tmp_path: Path) -> None:
    """Checks that the compiler's remaining process is reaped as soon as it has ended, although the worker is idle, so
    that no zombie stays."""
    folder = tmp_path / "bin"
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    real = find_toolchain()
    driver = folder / "compiler"
    driver.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *module.so*) cat {folder / "fifo"} >/dev/null 2>&1 </dev/null & ;; esac\n'
        f'exec {shlex.join(real.command)} "$@"\n'
    )
    driver.chmod(0o755)
    pool = CompileWorkers(cpu_worker, CompileLimits(60, 1 << 30))
    pool.set_compiler(CpuCompiler(toolchain=replace(real, command=(str(driver),), cache_dir=tmp_path)))
    try:
        works(pool)
        works(pool)
        (worker,) = pool.pids()
        assert len(group(worker)) == 3
        with (folder / "fifo").open("w"):
            pass
        until(lambda: group(worker) == [worker])
        works(pool)
        assert pool.pids() == [worker]
    finally:
        pool.close()


def group(leader: int) -> list[int]:
    """Returns the processes of a group, including zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == leader:
                    found.append(int(entry.name))
    return found


# ---- the sandbox ----


@pytest.mark.parametrize("confine", [True, False], ids=["confined", "text alone"])
@pytest.mark.parametrize(
    "code",
    ['#include "{}"', "#define W <{}>\n#include W", '#line 1 "{}"\n#error quoted', '__asm__(".incbin \\"{}\\"");'],
    ids=["include", "macro", "line", "incbin"],
)
def test_no_file_of_the_host_is_read(
    make: Callable[..., CompileWorkers], confine: bool, code: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("int not_to_be_seen = no_such_name;\n")
    pool = make(confine=confine)
    error = refusal(pool, Source(code.format(secret)))
    assert error.reason in (Reason.COMPILE_FAILED, Reason.UNSUPPORTED)
    assert "not_to_be_seen" not in f"{error.message} {error.details}"
    assert ("landlock" in (pool.confined or "")) == (confine and bool(_landlock()))
    works(pool)


@pytest.mark.skipif("not _landlock()", reason="this kernel has no Landlock")
def test_the_sandbox_alone_keeps_the_compiler_from_the_hosts_files(tmp_path: Path) -> None:
    """Leaves out the check of the text, which would refuse these sources first."""
    secret = tmp_path / "secret.h"
    secret.write_text("int not_to_be_seen = no_such_name;\n")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = """
import os, sys, tempfile
from hearth_proto.reasons import Refusal
from hearthd.device.compiler import worker_main
from hearthd.device.platform import sandbox
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.backend.compiler import Source
secret, scratch = sys.argv[1:]
tempfile.tempdir = os.environ["TMPDIR"] = scratch
compiler = CpuCompiler()
compiler.prepare(Source("")); compiler.load()
reads, writes = compiler.sandbox_paths()
assert sandbox.confine([*worker_main._SYSTEM_READS, *reads], [scratch, "/dev/null", *writes])
assert compiler.compile(Source('extern "C" __global__ void f() {}')).code
section = '__attribute__((section(".x,\\\\"aw\\\\"\\\\n.incbin \\\\"%s\\\\"\\\\n#"))) int a = 1;' % secret
for code in ('#include "%s"' % secret, "#define W <%s>\\n#include W" % secret, '#line 1 "%s"\\n#error quoted' % secret,
             '# 1 "/usr/include/x.h" 1 3\\n' + section):
    try: image = compiler.compile(Source(code))
    except Refusal as refusal: print(refusal.reason, refusal.message, refusal.details)
    else: print(image.code.decode(errors="replace"))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(secret), str(scratch)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("COMPILE_FAILED") == 4, done.stdout
    assert "not_to_be_seen" not in done.stdout + done.stderr


def test_text_for_the_assembler_is_refused(make: Callable[..., CompileWorkers]) -> None:
    pool = make()
    for attribute in ('__attribute__((section(".x\\n.inc" "bin"))) int a;', '[[gnu::section(".x")]] int a;'):
        assert refusal(pool, Source(attribute)).reason is Reason.UNSUPPORTED


# ---- the end ----


@pytest.mark.parametrize("start", ["spawn_worker", "fork_worker"])
def test_workers_end_with_the_device_process(start: str, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    script = f"""
import os, sys, threading, time
from hearthd.device.compiler import worker_process
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.broker.worker_entry import cpu_worker
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.backend.compiler import Source
pool = CompileWorkers(cpu_worker, CompileLimits(60, 1 << 30))
pool.warm(worker_process.{start})
pool.set_compiler(CpuCompiler())
pool.run(Source({FINE.code!r}))
print(*pool.pids(), flush=True)
pool.run(Source({SLOW.code!r}))
"""
    environment = {**os.environ, "COMPILE_TEST_MARK": mark, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    compiler = until(lambda: compiler_of(worker))
    process.kill()
    process.wait()
    process.stdout.close()
    until(lambda: not running(worker) and not running(compiler), 5)
    until(lambda: not marked(mark), 5)


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and running(int(entry.name)):
            with contextlib.suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def test_a_killed_process_leaves_no_files_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stale = tmp_path / "hearth-workers-stale"
    (stale / "1").mkdir(parents=True)
    pools = [CompileWorkers(cpu_worker, CompileLimits(60, 1 << 30)) for _ in range(2)]
    for pool in pools:
        pool.warm()
    assert not stale.exists()
    assert len(list(tmp_path.iterdir())) == 2, "files in use are kept"
    for pool in pools:
        pool.close()
    assert list(tmp_path.iterdir()) == []


def _landlock() -> int:
    from hearthd.device.platform.sandbox import landlock_version

    return landlock_version()
