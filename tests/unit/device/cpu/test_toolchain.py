"""The toolchain's separate cache for zig, and the replacement of the package's files while a process runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hearthd
from hearthd.device.cpu.toolchain import Toolchain

COMPILES = """
import sys
from pathlib import Path
from hearth_proto.reasons import Refusal
from hearthd.device.backend.compiler import Source
from hearthd.device.broker.worker_entry import cpu_worker
from hearthd.device.compiler import worker_process
from hearthd.device.compiler.cache import CompileCache
from hearthd.device.compiler.cancel_token import CancelToken
from hearthd.device.compiler.images import CachedImages
from hearthd.device.compiler.limits import CompileLimits
from hearthd.device.compiler.pool import CompileWorkers
from hearthd.device.cpu.compiler import CpuCompiler
from hearthd.device.cpu.module import CpuModule
cache, start, replaced, *numbers = sys.argv[1:]
pool = CompileWorkers(cpu_worker, CompileLimits(60, 1 << 30))
pool.warm(getattr(worker_process, start))
compiler = CpuCompiler(cache + "/cpu")
pool.set_compiler(compiler)
pool.ready()
images = CachedImages(pool, CompileCache(cache, 1 << 30, b"key"))
if replaced:
    with open(replaced, "a") as file:
        file.write("// the next version\\n")
for number in numbers:
    try:
        source = Source(f'extern "C" __global__ void k(int* x) {{ x[0] = {number}; }}')
        image, cached = images.image(source, CancelToken())
        CpuModule(image.code, compiler.toolchain())
        print("cached" if cached else "compiled")
    except Refusal as refusal:
        print(refusal)
pool.close()
"""


@pytest.mark.parametrize("start", ["fork_worker", "spawn_worker"])
def test_no_result_of_replaced_files_is_cached(tmp_path: Path, start: str) -> None:
    package = tmp_path / "hearthd"
    shutil.copytree(Path(hearthd.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join((str(tmp_path), *sys.path))

    def compiles(*numbers: int, replaced: str = "") -> list[str]:
        (tmp_path / "cache").mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-c", COMPILES, str(tmp_path / "cache"), start, replaced, *map(str, numbers)]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout.splitlines()

    header = str(package / "device" / "cpu" / "include" / "hearth" / "abi.h")
    assert compiles(1) == ["compiled"]
    refused, cached = compiles(2, 1, replaced=header)
    assert refused.startswith("NO_COMPILER: The daemon's own files have been replaced since it started")
    assert "Fix: Restart the daemon" in refused and cached == "cached"
    assert compiles(1, 2) == ["compiled", "compiled"]
    assert compiles(1, 2) == ["cached", "cached"]


def test_zig_s_cache_is_there_before_the_sandbox_is_shut(tmp_path: Path) -> None:
    toolchain = Toolchain((str(tmp_path / "ziglang" / "zig"), "c++"), "zig", is_clang=True, cache_dir=tmp_path)
    _, writes = toolchain.sandbox_paths()
    assert writes and all(Path(path).is_dir() for path in writes)  # a sandbox ignores paths that do not exist


def test_other_compilers_write_nothing(tmp_path: Path) -> None:
    assert Toolchain(("/usr/bin/g++",), "g++", is_clang=False, cache_dir=tmp_path).sandbox_paths()[1] == []
