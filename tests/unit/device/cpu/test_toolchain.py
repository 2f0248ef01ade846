"""The toolchain's separate cache for zig, which must be writable from inside a compile worker's sandbox."""

from __future__ import annotations

from pathlib import Path

from hearthd.device.cpu.toolchain import Toolchain


def test_zig_s_cache_is_there_before_the_sandbox_is_shut(tmp_path: Path) -> None:
    toolchain = Toolchain((str(tmp_path / "ziglang" / "zig"), "c++"), "zig", is_clang=True, cache_dir=tmp_path)
    _, writes = toolchain.sandbox_paths()
    assert writes and all(Path(path).is_dir() for path in writes)  # a sandbox ignores paths that do not exist


def test_other_compilers_write_nothing(tmp_path: Path) -> None:
    assert Toolchain(("/usr/bin/g++",), "g++", is_clang=False, cache_dir=tmp_path).sandbox_paths()[1] == []
