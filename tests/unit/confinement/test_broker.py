"""Brokers: what a device process gets from its own, and what it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.broker.segments import Segments
from hearthd.device.compilation import Image
from hearthd.device.compile_cache import CompileCache

PROGRAM = """
import os, sys
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from hearth_proto.reasons import Refusal
from hearthd import secret_file
from hearthd.device.broker import main
from hearthd.device.compilation import Source
from hearthd.spec import DeviceSpec
folder = sys.argv[1]
secret_file.ensure(folder + "/key")
spec = DeviceSpec(0, "cpu", 0, cache_dir=folder + "/cache", cache_key=folder + "/key", cache_divided=True)
broker = main.start(spec)
"""
SOURCE = 'extern "C" __global__ void f() {}'


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
    assert run(code, str(tmp_path), "bob") == "[False, True]\ngone"
    assert run(code, str(tmp_path), "another") == "[False, True]\ngone"


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
    )  # returns when all that have the pipe have ended
    assert done.returncode == -9 and int(done.stdout)


# ---- segments ----


@pytest.fixture
def segments() -> Iterator[Segments]:
    yield Segments()


def test_segment_goes_to_who_knows_its_nonce(segments: Segments) -> None:
    file, nonce = os.memfd_create("segment"), os.urandom(16)
    os.write(file, b"shared")
    segments.keep(nonce, file)
    os.close(file)
    came = Segments.fetch(nonce)
    assert os.pread(came, 6, 0) == b"shared"
    os.close(came)
    with pytest.raises(OSError):
        Segments.fetch(os.urandom(16))
    segments.drop(nonce)
    segments.drop(nonce)
    with pytest.raises(OSError):
        Segments.fetch(nonce)


# ---- entries of the cache ----


def test_entry_of_another_key_name_or_tenant_is_a_miss(tmp_path: Path) -> None:
    names = ["ab" + "0" * 62, "cd" + "1" * 62]
    ours, theirs = (CompileCache(str(tmp_path), 1 << 20, secret) for secret in (b"a" * 32, b"b" * 32))
    ours.store(names[0], Image(b"one"))
    assert ours.load(names[0]) == Image(b"one")
    path = tmp_path / "ab" / names[0]
    moved = tmp_path / "cd" / names[1]
    moved.parent.mkdir()
    moved.write_bytes(path.read_bytes())
    assert ours.load(names[1]) is None
    assert theirs.load(names[0]) is None
    alice, bob = (CompileCache(str(tmp_path), 1 << 20, b"a" * 32, divided=True) for _ in range(2))
    alice.pin("alice")
    bob.pin("bob")
    alice.store(names[0], Image(b"hers"))
    assert alice.load(names[0]) == Image(b"hers") and bob.load(names[0]) is None


def test_refusals_of_a_broker_keep_their_reason() -> None:
    from hearthd.device.broker.client import _refusal
    from hearthd.device.compile_messages import pack_refusal

    for reason in (Reason.COMPILE_FAILED, Reason.COMPILE_LIMIT, Reason.NO_COMPILER, Reason.CANCELLED):
        assert _refusal(pack_refusal(Refusal(reason, "why"))).reason is reason
