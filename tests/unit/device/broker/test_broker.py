"""Brokers: the services that a device process gets from its broker, and those that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image
from hearthd.device.compiler.cache import CompileCache
from hearthd.device.platform.segment_exchange import SegmentExchange

PROGRAM = """
import os, sys
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from hearth_proto.reasons import Refusal
from hearthd.shared import secret_file
from hearthd.device.broker.main import start_broker
from hearthd.device.backend.compiler import Source
from hearthd.shared.device_spec import DeviceSpec
folder = sys.argv[1]
secret_file.ensure(folder + "/key")
spec = DeviceSpec(0, "cpu", 0, cache_dir=folder + "/cache", cache_key=folder + "/key", cache_divided=True)
broker = start_broker(spec)
"""
REPLACED = """
import threading, time
from pathlib import Path
def its_pid():
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    return int(children[0]) if children else 0
def lost(last=0):
    while (pid := its_pid()) in (0, last):
        time.sleep(0.01)
    os.kill(pid, 9)
    return pid
"""
SOURCE = 'extern "C" __global__ void f() {}'


def run_logged(code: str, *arguments: str) -> tuple[str, str]:
    """Returns the program's output and its log."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def run(code: str, *arguments: str) -> str:
    return run_logged(code, *arguments)[0]


def test_images_come_from_the_cache_of_the_tenant(tmp_path: Path) -> None:
    code = f"""
broker.pin(sys.argv[2])
broker.pin("another")  # the first one counts
broker.ready()
print([broker.image(Source({SOURCE!r}))[1] for _ in range(2)])
broker.close()
try:
    os.kill(broker.pid, 0)
except ProcessLookupError:
    print("gone")
"""
    assert run(code, str(tmp_path), "alice") == "[False, True]\ngone"
    assert run(code, str(tmp_path), "alice") == "[True, True]\ngone"
    assert run(code, str(tmp_path), "bob") == "[False, True]\ngone"  # nor is the entry found under the second name


def test_only_the_backends_own_libraries_are_made(tmp_path: Path) -> None:
    code = """
for name in ("../x", "reduce-", "reduce-nothing", "libc", ""):
    try:
        broker.library(name)
    except Refusal as refusal:
        print(refusal.reason)
broker.close()
"""
    assert run(code, str(tmp_path)) == "\n".join(["INTERNAL"] * 5)


def test_broker_ends_with_its_device_process(tmp_path: Path) -> None:
    code = """
broker.ready()
print(broker.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )  # returns when all processes that hold the pipe have ended
    assert done.returncode == -9 and int(done.stdout)


def test_replaced_broker_has_the_pinned_entries_of_the_first(tmp_path: Path) -> None:
    code = (
        REPLACED
        + f"""
source = Source({SOURCE!r})
first = lost()  # before anything was asked
broker.pin(sys.argv[2])
print(broker.image(source)[1])
second = lost(first)
print(broker.image(source)[1], its_pid() not in (0, first, second))
file, nonce = os.memfd_create("segment"), os.urandom(16)
os.write(file, b"shared")
third = its_pid()
broker.keep(nonce, file)
lost(second)
print(os.pread(broker.fetch(nonce), 6, 0), its_pid() != third)
broker.drop(nonce)
try:
    broker.fetch(nonce)
except OSError as error:
    print(type(error).__name__)
broker.close()
"""
    )
    printed, logged = run_logged(code, str(tmp_path), "alice")
    assert printed.splitlines() == ["False", "True True", "b'shared' True", "ConnectionRefusedError"]
    assert logged.count("broker_lost") == 3
    assert run(f"broker.pin('alice'); print(broker.image(Source({SOURCE!r}))[1])", str(tmp_path)) == "True"
    assert run(f"broker.pin('bob'); print(broker.image(Source({SOURCE!r}))[1])", str(tmp_path)) == "False"


def test_request_is_made_to_a_second_broker_and_to_no_third(tmp_path: Path) -> None:
    """Kills brokers while they compile: `compile` blocks until two brokers have ended."""
    code = (
        REPLACED
        + f"""
from hearthd.device.broker import main as module
class Stuck(module.BrokerRequests):
    def answer(self, head, parts, number):
        if head.get("ask") == "image" and not os.path.exists(sys.argv[1] + "/free"):
            open(sys.argv[1] + f"/asked-{{os.getpid()}}", "w").close()
            time.sleep(600)
        return super().answer(head, parts, number)
module.BrokerRequests = Stuck
broker.close()
broker = start_broker(spec)
def kill():
    pids = set()
    while len(pids) < int(sys.argv[2]):
        for name in os.listdir(sys.argv[1]):
            if name.startswith("asked-") and (pid := int(name[6:])) not in pids:
                pids.add(pid)
                if len(pids) == 2:
                    open(sys.argv[1] + "/free", "w").close()
                os.kill(pid, 9)
        time.sleep(0.01)
threading.Thread(target=kill).start()
try:
    print(broker.image(Source({SOURCE!r}))[1])
except Refusal as refusal:
    print(refusal.reason, refusal.retryable)
print(broker.image(Source({SOURCE!r}))[1])
broker.close()
"""
    )
    lines = [line for line in run(code, str(tmp_path), "2").splitlines() if "broker_lost" not in line]
    assert lines == ["DEVICE_UNAVAILABLE True", "False"]


def test_without_its_keeper_a_broker_is_not_replaced(tmp_path: Path) -> None:
    code = (
        REPLACED
        + f"""
broker.ready()
pid = its_pid()
os.kill(broker.pid, 9)
for _ in range(2):
    try:
        broker.image(Source({SOURCE!r}))
    except Refusal as refusal:
        print(refusal.reason, "restart-device" in refusal.fix)
while os.path.exists(f"/proc/{{pid}}"):
    time.sleep(0.01)
"""
    )
    assert run(code, str(tmp_path)) == "INTERNAL True\nINTERNAL True"


def test_compile_is_cancelled_at_any_time(tmp_path: Path) -> None:
    """Cancels before the request, while it travels, while the worker starts, and while it compiles."""
    slow = """
template <int A, int B> struct F { static const int v = F<A - 1, B * 2>::v + F<A - 1, B * 2 + 1>::v; };
template <int B> struct F<0, B> { static const int v = 1; };
extern "C" __global__ void f(int* x) { *x = F<30, 0>::v; }
"""
    code = f"""
import threading, time
from hearthd.device.compiler.cancel_token import CancelToken
def cancel(token, delay):
    time.sleep(delay)
    token.cancel()
for delay in (0, 0, 0.001, 0.01, 0.1, 1):
    token = CancelToken()
    thread = threading.Thread(target=cancel, args=(token, delay))
    thread.start()
    try:
        broker.image(Source({slow!r}), token)
    except Refusal as refusal:
        print(refusal.reason)
    thread.join()
print(broker.image(Source({SOURCE!r}))[1])
broker.close()
"""
    assert run(code, str(tmp_path)).split() == ["CANCELLED"] * 6 + ["False"]


def test_message_that_is_too_large_fails_its_compile_and_ends_no_broker(tmp_path: Path) -> None:
    """Sends a job with too many headers and one with too many options, makes the broker answer with too many names, and
    sends a link whose sources share more headers than fit once for each source."""
    code = (
        REPLACED
        + f"""
from hearthd.device.backend.compiler import LinkJob
from hearthd.device.broker import main as module
class Wordy(module.BrokerRequests):
    def answer(self, head, parts, number):
        answer, code = super().answer(head, parts, number)
        return ({{**answer, "names": {{"x": "y" * (17 << 20)}}}} if answer.get("cached") else answer), code
module.BrokerRequests = Wordy
broker.close()
broker = start_broker(spec)
def tried(job):
    try:
        return broker.image(job)[1]
    except Refusal as refusal:
        return str(refusal.reason)
source = Source({SOURCE!r})
print(tried(source))
pid = its_pid()
print(tried(Source("", headers=tuple((f"{{n}}.h", "") for n in range(40_000)))))
print(tried(Source("", options=("-D" + "A" * (17 << 20),))))
print(tried(source))
headers = tuple((f"{{n}}.h", "") for n in range(150))
print(tried(LinkJob(tuple(Source(f"int a{{n}};", ("-rdc=true",), (), headers) for n in range(220)), ("-rdc=true",))))
print(its_pid() == pid)
broker.close()
"""
    )
    limited = ["COMPILE_LIMIT"] * 3
    assert run(code, str(tmp_path)).splitlines() == ["False", *limited, "UNSUPPORTED", "True"]


# ---- segments ----


def test_answer_that_arrives_after_its_timeout_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    """Stops the broker during the first of two requests for segments."""
    code = (
        REPLACED
        + """
import signal
nonces = [os.urandom(16) for _ in range(2)]
for number, nonce in enumerate(nonces):
    file = os.memfd_create("segment")
    os.write(file, b"%d" % number)
    broker.keep(nonce, file)
files = len(os.listdir("/proc/self/fd"))
_, requests, _ = broker.ends
pid = its_pid()
os.kill(pid, signal.SIGSTOP)
def is_stopped():
    states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}
while not is_stopped():
    time.sleep(0.001)
requests.settimeout(0.01)
try:
    broker.fetch(nonces[0])
except TimeoutError:
    print("late")
requests.settimeout(60)
os.kill(pid, signal.SIGCONT)
print(os.pread(broker.fetch(nonces[1]), 1, 0), os.pread(broker.fetch(nonces[0]), 1, 0))
print(len(os.listdir("/proc/self/fd")) - files)
broker.close()
"""
    )
    assert run(code, str(tmp_path)).splitlines() == ["late", "b'1' b'0'", "2"]


@pytest.fixture
def segments() -> Iterator[SegmentExchange]:
    yield SegmentExchange()


def test_segment_is_fetched_by_its_nonce(segments: SegmentExchange) -> None:
    file, nonce = os.memfd_create("segment"), os.urandom(16)
    os.write(file, b"shared")
    segments.keep(nonce, file)
    os.close(file)
    fetched = SegmentExchange.fetch(nonce)
    assert os.pread(fetched, 6, 0) == b"shared"
    os.close(fetched)
    with pytest.raises(OSError):
        SegmentExchange.fetch(os.urandom(16))
    segments.drop(nonce)
    segments.drop(nonce)
    with pytest.raises(OSError):
        SegmentExchange.fetch(nonce)


# ---- entries of the cache ----


def test_entry_of_another_key_name_or_tenant_is_a_miss(tmp_path: Path) -> None:
    names = ["ab" + "0" * 62, "cd" + "1" * 62]
    first_cache, second_cache = (CompileCache(str(tmp_path), 1 << 20, secret) for secret in (b"a" * 32, b"b" * 32))
    first_cache.store(names[0], Image(b"one"))
    assert first_cache.load(names[0]) == Image(b"one")
    path = tmp_path / "ab" / names[0]
    moved = tmp_path / "cd" / names[1]
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    assert first_cache.load(names[1]) is None
    assert second_cache.load(names[0]) is None
    alice, bob = (CompileCache(str(tmp_path), 1 << 20, b"a" * 32, divided=True) for _ in range(2))
    alice.pin("alice")
    bob.pin("bob")
    alice.store(names[0], Image(b"hers"))
    assert alice.load(names[0]) == Image(b"hers") and bob.load(names[0]) is None


def test_refusals_of_a_broker_keep_their_reason() -> None:
    from hearthd.device.broker.client import _refusal
    from hearthd.device.compiler.protocol import pack_refusal

    for reason in (Reason.COMPILE_FAILED, Reason.COMPILE_LIMIT, Reason.NO_COMPILER, Reason.CANCELLED):
        assert _refusal(pack_refusal(Refusal(reason, "why"))).reason is reason
    refusal = Refusal(Reason.COMPILE_FAILED, "why", fields=["size", "options", "code"])
    assert _refusal(pack_refusal(refusal)).fields == ("code", "options"), "other fields are not those of a compile"
