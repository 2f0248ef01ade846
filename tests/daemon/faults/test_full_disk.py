"""Full disks: the error names the disk and never blames the source; operations that need no disk continue."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hearth
from tests.support.daemon.harness import StartDaemon, on_cpu
from tests.support.daemon.kernels import saxpy_works

SOURCE = 'extern "C" __global__ void f(int* x) { *x = NUMBER; }'

SAID = (
    "Fatal error: can't write 12 bytes to section .text of module.o: 'No space left on device'",
    "/usr/bin/ld: final link failed: No space left on device",
)
"""Messages of gcc's assembler and linker."""

pytestmark = on_cpu


@pytest.fixture
def small() -> Iterator[Path]:
    """Yields a file system of 1 MiB."""
    path = Path(tempfile.mkdtemp(prefix="hearth-small-"))
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "small", path], check=False, capture_output=True
    ).returncode:
        path.rmdir()
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", "-l", path], check=True)
    shutil.rmtree(path, ignore_errors=True)


def refused(gpu: hearth.Device, number: int) -> hearth.HearthError:
    with pytest.raises(hearth.UnavailableError) as caught:
        gpu.RawModule(code=SOURCE.replace("NUMBER", str(number))).compile()
    error = caught.value
    assert error.reason == "DISK_FULL" and error.retryable, error
    assert "Free space" in error.fix and error.details["path"] in error.message
    return error


def test_a_cache_directory_that_is_full(start_daemon: StartDaemon, small: Path) -> None:
    daemon = start_daemon(cache_dir=small)
    with daemon.connect() as node:
        gpu = node.device(0)
        error = refused(gpu, 1)
        assert error.details["path"].startswith(str(small)) and "cache.dir" in error.fix
        x = gpu.full(8, 3, "int32")
        assert x.get().tolist() == [3] * 8, "the device serves"
    assert daemon.generation() == 1


def test_a_temporary_directory_that_is_full(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While `full0` or `full1` exists, the assembler or the linker reports a full disk for the module's object file."""
    full, script = tmp_path / "full", tmp_path / "c++"
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no compiler to stand before")
    lines = [
        f'if [ -e {full}{number} ]; then case "$*" in *module.o*) echo "{said}" >&2; exit 1;; esac; fi'
        for number, said in enumerate(SAID)
    ]
    script.write_text("\n".join(("#!/bin/sh", *lines, f'exec {compiler} "$@"\n')))
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    daemon = start_daemon(cache_dir=tmp_path / "cache")
    with daemon.connect() as node:
        gpu = node.device(0)
        saxpy_works(gpu)
        for number in range(len(SAID)):
            sign = Path(f"{full}{number}")
            sign.touch()
            assert "TMPDIR" in refused(gpu, number).fix
            sign.unlink()
        with pytest.raises(hearth.CompileError, match="error"):
            gpu.RawModule(code='#error "No space left on device"\n').compile()
        gpu.RawModule(code=SOURCE.replace("NUMBER", "0")).compile()
    assert daemon.generation() == 1
