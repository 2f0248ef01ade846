"""The `hearth` command itself: what it loads, and how it ends."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hearth import errors
from hearth.cli import bench, main


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_library_does_not_import_it() -> None:
    names = run("import sys, hearth, hearth.node, hearth.device; print(*sys.modules)")
    assert "hearth.device" in names and not [name for name in names if name.startswith("hearth.cli")]


def test_its_help_needs_neither_grpc_nor_numpy() -> None:
    code = """
import sys
from hearth.cli import main
try:
    main.main(["bench", "--help"])
except SystemExit:
    print(*sys.modules)
"""
    names = run(code)
    assert "hearth.cli.bench" in names and not {"grpc", "numpy", "google.protobuf"} & set(names)


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (KeyboardInterrupt(), 130, "hearth: interrupted\n"),
        (errors.ArgumentError("bad\nwords.", reason="INVALID_ARGUMENT"), 2, "hearth: bad words.\n"),
        (errors.ArgumentError("none.", reason="DEVICE_NOT_FOUND", fix="look."), 1, "hearth: none. Fix: look.\n"),
        (errors.ConnectError("nobody."), 1, "hearth: nobody.\n"),
        (errors.CompileError("x " * 2000), 1, "hearth: " + "x " * 500 + "...\n"),
    ],
)
def test_each_end_is_one_line_and_a_status(
    error: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(bench, "run", raising(error))
    assert main.main(["bench"]) == status
    assert capsys.readouterr() == ("", says)


def test_the_version(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("hearth 0.")


def test_sizes_grow_to_the_largest() -> None:
    def sizes(*arguments: str) -> list[int]:
        return bench._sizes(main.build_parser().parse_args(["bench", *arguments]))

    mib = 1 << 20
    assert sizes() == [mib, 64 * mib] and sizes("--quick") == [mib, 16 * mib]
    assert sizes("--max-size", "64KiB") == [65536]
    assert sizes("--max-size", "100MiB") == [mib, 64 * mib, 100 * mib]
