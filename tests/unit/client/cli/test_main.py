"""The `hearth` command itself: its imports and its exit statuses."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import hearth
from hearth import errors
from hearth.cli import main
from hearth.cli.bench import command


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_library_does_not_import_the_cli() -> None:
    names = run("import sys, hearth, hearth.blocking.node, hearth.blocking.device; print(*sys.modules)")
    assert "hearth.blocking.device" in names and not [name for name in names if name.startswith("hearth.cli")]


def test_help_imports_neither_grpc_nor_numpy() -> None:
    code = """
import sys
from hearth.cli import main
try:
    main.main(["bench", "--help"])
except SystemExit:
    print(*sys.modules)
"""
    names = run(code)
    assert "hearth.cli.bench.command" in names and not {"grpc", "numpy", "google.protobuf"} & set(names)


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
        (errors.ConnectError("gone."), 1, "hearth: gone.\n"),
        (errors.CompileError("x " * 2000), 1, "hearth: " + "x " * 500 + "...\n"),
    ],
)
def test_each_error_is_one_line_and_an_exit_status(
    error: BaseException, status: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(command, "run", raising(error))
    assert main.main(["bench"]) == status
    assert capsys.readouterr() == ("", says)


def test_the_version(capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == f"hearth {hearth.__version__}\n"


@pytest.mark.parametrize("name", ["hearth", "hearthd"])
def test_the_commands_run_as_modules(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {hearth.__version__}\n", "")


def test_sizes_grow_to_the_largest() -> None:
    def sizes(*arguments: str) -> list[int]:
        return command.sizes(main.build_parser().parse_args(["bench", *arguments]))

    mib = 1 << 20
    assert sizes() == [mib, 64 * mib] and sizes("--quick") == [mib, 16 * mib]
    assert sizes("--max-size", "64KiB") == [65536]
    assert sizes("--max-size", "100MiB") == [mib, 64 * mib, 100 * mib]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("status host:1 --json", {"target": "host:1", "json": True}),
        ("status --json host:1 --wait 3", {"target": "host:1", "json": True, "wait": 3.0}),
        ("devices 0 --json host:1", {"device": "0", "target": "host:1", "json": True}),
        ("sessions end abcd --json host:1", {"action": "end", "id": "abcd", "target": "host:1", "json": True}),
        ("sessions --json end abcd", {"action": "end", "id": "abcd", "target": None}),
        ("restart-device --wait 5 3 --json host:1", {"device": 3, "target": "host:1", "wait": 5.0}),
        ("devices -- -1", {"device": "-1", "target": None}),
        ("bench --quick host:1 --device 1", {"target": "host:1", "device": 1}),
    ],
)
def test_arguments_in_any_order(line: str, expected: dict[str, Any]) -> None:
    parsed = vars(main.build_parser().parse_args(line.split()))
    assert {name: parsed[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("status a b", "unrecognized arguments: b"),
        ("status --fast a", "unrecognized arguments: --fast"),
        ("restart-device", "the following arguments are required: N"),
        ("restart-device x", "not a device number"),
        ("drain --wait", "expected one argument"),
    ],
)
def test_wrong_arguments_are_one_line(line: str, says: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(line.split())
    (told,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and told.startswith("hearth") and says in told and "--help)" in told


def test_help_lists_the_exit_statuses(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    out = capsys.readouterr().out
    for status in ("0    success", "1    failure", "2    usage error", "130  interrupted"):
        assert f"\n  {status}" in out


@pytest.mark.parametrize("arguments", ["hearth completion bash", "hearthd print-config", "hearthd token"])
def test_output_that_cannot_be_written_is_one_line(arguments: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m {arguments} >/dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"{arguments.split(maxsplit=1)[0]}: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("arguments", ["hearth completion bash", "hearthd print-config"])
@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-"])
def test_commands_run_with_closed_standard_streams(arguments: str, closed: str) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "", "1>" not in closed)
