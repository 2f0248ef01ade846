"""Full disks: recognized by error numbers and by compilers' messages, and reported as such wherever a compile meets
one."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.compiler import Image, Source
from hearthd.device.compiler import cache as compile_cache
from hearthd.device.compiler import protocol
from hearthd.device.compiler.cache import CompileCache
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.pool import _not_started
from hearthd.device.compiler.service import Compiled, CompileService
from hearthd.shared import disk

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_messages_of_a_full_disk_are_recognised() -> None:
    assert disk.is_full(FULL) and disk.is_full(OSError(errno.EDQUOT, "quota"))
    assert not disk.is_full(OSError(errno.EACCES, "no")) and not disk.is_full(ValueError())
    for said in (
        "/tmp/ccx.s: fatal error: error writing to /tmp/ccx.s: No space left on device",
        "ld: final link failed: Disk quota exceeded",
        "error: NoSpaceLeft",
    ):
        assert disk.says_full(f"warning\n{said}\n")
    assert not disk.says_full('kernel.cu(1): error: #error "No space left on device"')
    assert not disk.says_full("kernel.cu(1): error: static assertion failed: No space left on device")


def test_refusal_of_a_worker_is_passed_unchanged() -> None:
    refusal = protocol.unpack_refusal(protocol.pack_refusal(disk.temporary("/tmp/x")))
    assert refusal.reason is Reason.DISK_FULL and refusal.retryable and refusal.details["path"] == "/tmp/x"


def test_a_worker_that_finds_no_room_at_its_start() -> None:
    assert _not_started("OSError: [Errno 28] No space left on device").reason is Reason.DISK_FULL
    assert _not_started("something else").reason is Reason.INTERNAL


def test_a_full_cache_is_reported_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, told = CompileCache(str(tmp_path), 1 << 20), list[str]()
    cache.report = told.append
    image = Image(b"code", names={}, log="")

    def full(**_: Any) -> Any:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(compile_cache.tempfile, "NamedTemporaryFile", full)
        for _ in range(3):
            cache.store("ab12", image)
    assert len(told) == 1 and str(tmp_path) in told[0] and cache.load("ab12") is None
    cache.store("ab12", image)
    assert cache.load("ab12") == image


class Runner:
    """A runner whose compiles fail with the given error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def identity(self, job: Any) -> bytes:
        return b"compiler"

    def run(self, job: Any, token: Any) -> Image:
        raise self.error

    def ready(self) -> None: ...
    def release_idle(self) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize("inside", [True, False])
def test_a_compile_that_meets_a_full_disk(tmp_path: Path, inside: bool) -> None:
    place = str(tmp_path / "prelude") if inside else "/tmp/hearth-x"
    done, outcome = threading.Event(), list[Compiled]()
    runner: Any = Runner(OSError(errno.ENOSPC, "No space left on device", place))
    service = CompileService(CachedImages(runner, CompileCache(str(tmp_path), 1 << 20)), 1, lambda action: action())

    def landed(compiled: Compiled) -> None:
        outcome.append(compiled)
        done.set()

    service.submit(Source("code"), landed)
    assert done.wait(20)
    service.close()
    error = outcome[0].error
    assert isinstance(error, Refusal) and error.reason is Reason.DISK_FULL and place in error.message
    assert ("cache.dir" if inside else "TMPDIR") in error.fix
