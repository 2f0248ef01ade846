"""`hearth bench`, in a separate process as a user runs it: its output, and its errors if it cannot measure."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hearth
from tests.support.daemon.authority import Authority
from tests.support.daemon.harness import (
    BACKEND,
    MARK,
    DaemonProcess,
    StartDaemon,
    command_of,
    environment,
    marked,
    on_cpu,
    wait_until,
)
from tests.support.daemon.tenants import new_token, tenant, tenants

LAUNCHING = ["launch + synchronize", "pipelined launches", "new connection to first result"]
CLOSED = "127.0.0.1:1"
"""An address at which nothing listens."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hearth.cli.main", *arguments]


def bench(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `hearth bench` until it ends; checks that it leaves no process and never prints a traceback."""
    mark = uuid.uuid4().hex
    done = subprocess.run(
        command("bench", *arguments), capture_output=True, text=True, env=environment(**{MARK: mark}, **variables),
        timeout=100, check=False,
    )  # fmt: skip
    assert not [command_of(pid) for pid in marked(mark)]
    assert "Traceback" not in done.stderr, done.stderr
    return done


@contextlib.contextmanager
def started(*arguments: str, mark: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `hearth bench` in the background, in a separate process group."""
    with subprocess.Popen(
        command("bench", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(**{MARK: mark}), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def complaint(done: subprocess.CompletedProcess[str], status: int) -> str:
    """Returns the only line that it writes to standard error."""
    assert done.returncode == status, (done.returncode, done.stderr)
    (line,) = done.stderr.splitlines()
    return line


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {figure["name"]: figure for figure in found["figures"]}


def plausible(series: dict[str, Any], better: str) -> None:
    """Checks that percentiles are positive and ordered from better to worse."""
    assert series["n"] >= 1 and series["p50"] > 0
    falling = [series["p99"], series["p90"], series["p50"]]
    assert falling == sorted(falling, reverse=better == "lower")


# ---- measurements ----


@pytest.mark.parametrize("road", ["unix", "grpc"])
def test_every_figure_has_percentiles_and_a_floor(daemon: DaemonProcess, road: str) -> None:
    target, last = getattr(daemon, road), daemon.ordinals()[-1]
    done = bench(target, "--quick", "--json", "--max-size", "2MiB", "--device", str(last))
    assert done.returncode == 0 and not done.stderr, done.stderr
    found = document(done)
    with daemon.connect() as node:
        version, name = node.describe().server_version, node.device(last).properties.name
    assert found["schema"] == 1 and found["target"] == target
    assert found["daemon"]["version"] == version
    assert (found["device"]["ordinal"], found["device"]["name"]) == (last, name)
    assert found["client"]["host"] == platform.node() and found["client"]["python"] == platform.python_version()
    assert found["floors"]["over"] == ("unix" if road == "unix" else "tcp")
    sizes = ["upload 1 MiB", "upload 2 MiB", "download 1 MiB", "download 2 MiB"]
    assert sorted(by_name(found)) == sorted([*LAUNCHING, "write + read 4 KiB", *sizes])
    for figure in found["figures"]:
        assert figure["unit"] in ("us", "ms", "1/s", "GB/s")
        plausible(figure, figure["better"])
        for floor in (figure["floor"], *figure["other_floors"]):
            assert floor["unit"] == figure["unit"] and floor["n"] >= 3
            plausible(floor, figure["better"])
            assert floor["ratio"] == pytest.approx(figure["p50"] / floor["p50"])
    assert all(len(by_name(found)[size]["other_floors"]) == 1 for size in sizes)  # the floor of memcpy


def test_table_has_a_line_for_each_figure(daemon: DaemonProcess) -> None:
    done = bench("--quick", "--max-size", "1MiB", HEARTH_TARGET=daemon.unix)
    assert done.returncode == 0 and not done.stderr, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(daemon.unix)
    (header,) = (line for line in lines if line.split()[:3] == ["p50", "p90", "p99"])
    for name in (*LAUNCHING, "write + read 4 KiB", "upload 1 MiB", "download 1 MiB"):
        (row,) = (line for line in lines if line.startswith(name))
        assert row.index("bare") == header.index("floor measured")


def sessions(node: hearth.Node) -> set[str]:
    """Returns all sessions of the daemon. Sessions of clients that other tests have killed exist until their lease
    ends."""
    return {each.session_id for each in node.sessions()}


def test_bench_leaves_no_session(daemon: DaemonProcess) -> None:
    with daemon.connect() as node:
        before = sessions(node)
        assert bench(daemon.unix, "--quick", "--max-size", "1MiB").returncode == 0
        wait_until(lambda: sessions(node) <= before, "the end of its sessions")


# ---- wrong arguments ----


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--max-size", "nonsense"], "'nonsense' is not a size"),
        (["--max-size", "-1"], "'-1' is not a size"),
        (["--max-size", "0"], "is not between 4 KiB and"),
        (["--max-size", "9000TiB"], "a quarter of this machine's memory"),
        (["--device", "-1"], "'-1' is not a device number"),
        (["--device", "first"], "not a device number"),
        (["--timeout", "nan"], "not a number of seconds"),
        (["--token", "a", "--token-file", "b"], "not allowed with"),
        (["--token-file", "/nowhere"], "'/nowhere' cannot be read"),
        (["--fast"], "unrecognized arguments: --fast"),
        (["unix:", "--quick"], "is not an address of a daemon"),
        ([CLOSED, "--ca", "ca.pem"], "only with TLS"),
    ],
)  # fmt: skip
def test_wrong_use(arguments: list[str], says: str) -> None:
    done = bench(*arguments)
    assert says in complaint(done, 2) and not done.stdout


def test_missing_and_unknown_command() -> None:
    for arguments in ([], ["melt"]):
        done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60, check=False)
        assert done.stderr.startswith("hearth: ") and complaint(done, 2)


def test_absent_daemon_is_reported(tmp_path: Path) -> None:
    for target in (CLOSED, f"unix:{tmp_path}/none.sock"):
        done = bench(target, "--quick", "--json")
        line = complaint(done, 1)
        assert line.startswith("hearth: no daemon answers at") and "hearthd serve" in line and not done.stdout


def test_unknown_device_is_reported(daemon: DaemonProcess) -> None:
    done = bench(daemon.unix, "--device", "77")
    assert f"no device 77; it has {daemon.ordinals()}" in complaint(done, 1) and not done.stdout


# ---- refusals of the daemon ----


def test_tokens(start_daemon: StartDaemon, tmp_path: Path) -> None:
    """A wrong token; a valid one passed in each way; without the right to launch, the transfers are measured."""
    config, tokens = tenants("all", tenant("no-launch", rights=["allocate", "read", "write"]))
    daemon = start_daemon(**config)
    line = complaint(bench(daemon.grpc, "--quick", "--token", new_token()), 1)
    assert "the argument token" in line and "hearth_" not in line
    assert complaint(bench(daemon.grpc, "--quick"), 1)
    file = tmp_path / "token"
    file.write_text(tokens["all"] + "\n")
    small = ("--quick", "--max-size", "64KiB")
    assert bench(daemon.grpc, *small, "--token-file", str(file)).returncode == 0

    done = bench(daemon.grpc, *small, "--json", HEARTH_TOKEN=tokens["no-launch"])
    line = complaint(done, 1)
    assert line.startswith(f"hearth: not measured: {', '.join(LAUNCHING)}: ") and "launch" in line.partition(": ")[2]
    figures = by_name(document(done))
    assert {name for name, figure in figures.items() if "error" in figure} == set(LAUNCHING)
    assert all(figures[name]["error"]["reason"] == "PERMISSION_DENIED" for name in LAUNCHING)
    assert figures["upload 64 KiB"]["p50"] > 0


def test_over_tls(start_daemon: StartDaemon, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path / "ours").issue("localhost")
    daemon = start_daemon(tls={"certificate": str(certificate), "key": str(key)})
    target = f"https://localhost:{daemon.grpc.rpartition(':')[2]}"
    line = complaint(bench(target, "--quick"), 1)
    assert "is not trusted" in line and "HEARTH_CA" in line
    assert "requires TLS" in complaint(bench(daemon.grpc, "--quick"), 1)
    done = bench(target, "--quick", "--max-size", "4KiB", "--json", "--ca", str(tmp_path / "ours" / "ca.pem"))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert (document(done)["target"], document(done)["floors"]["over"]) == (target, "tcp")


def test_memory_that_is_too_small_for_a_size(start_daemon: StartDaemon) -> None:
    # A GPU's memory pool allocates device memory in pieces of 32 MiB.
    quota, size = ("4MiB", "8 MiB") if BACKEND == "cpu" else ("40MiB", "64 MiB")
    config, tokens = tenants(tenant("small", quotas={"device_bytes": quota}))
    daemon = start_daemon(**config)
    done = bench(daemon.unix, "--quick", "--max-size", size.replace(" ", ""), HEARTH_TOKEN=tokens["small"])
    assert done.returncode == 1, done.stderr
    lines = [line.removeprefix("hearth: not measured: ") for line in done.stderr.splitlines()]
    # Further memory, and therefore the message, depends on the backend and the machine.
    named = [name for line in lines for name in line.partition(": ")[0].split(", ")]
    assert sorted(named) == [f"download {size}", f"upload {size}"], done.stderr
    assert all("device memory were requested" in line for line in lines), done.stderr
    for way in ("upload", "download"):
        assert f"\n{way} {size}  " in done.stdout
        (row,) = (line for line in done.stdout.splitlines() if line.startswith(f"{way} {size}"))
        assert "not measured: " in row
        (row,) = (line for line in done.stdout.splitlines() if line.startswith(f"{way} 1 MiB"))
        assert "bare socket, 1 MiB" in row


def test_daemon_that_stops_during_the_bench(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    mark = uuid.uuid4().hex
    with started(daemon.unix, "--timeout", "2", mark=mark) as process:
        wait_until(lambda: daemon.counter("kernel_launches") > 0, "a launch")
        daemon.stop()
        out, err = process.communicate(timeout=60)
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    assert complaint(done, 1).startswith("hearth: ") and not out
    assert not [command_of(pid) for pid in marked(mark)]


# ---- Ctrl-C ----


def test_ctrl_c_during_the_bench(daemon: DaemonProcess) -> None:
    mark = uuid.uuid4().hex
    before = daemon.counter("kernel_launches")
    with daemon.connect() as node:
        others = sessions(node)
    with daemon.connect() as node, started(daemon.unix, mark=mark) as process:
        wait_until(lambda: daemon.counter("kernel_launches") > before and len(marked(mark)) == 2, "the measurement")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the group
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (130, "", "hearth: interrupted\n")
        assert not [command_of(pid) for pid in marked(mark)]
        wait_until(lambda: sessions(node) <= others | {node.session_id}, "the end of its session")


def test_child_processes_end_when_bench_is_killed(daemon: DaemonProcess) -> None:
    mark = uuid.uuid4().hex
    with started(daemon.unix, mark=mark) as process:
        wait_until(lambda: len(marked(mark)) == 2, "its process")
        process.kill()
        process.wait()
        wait_until(lambda: not marked(mark), "the end of its processes")


def test_output_without_a_reader(daemon: DaemonProcess) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            command("bench", daemon.unix, "--quick", "--max-size", "4KiB"), stdout=closed, stderr=subprocess.PIPE,
            text=True, env=environment(), timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "")


@on_cpu
def test_a_daemon_without_a_compiler(
    start_daemon: StartDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        patch.delenv("CXX", raising=False)
        daemon = start_daemon(cache_dir=tmp_path)
    done = bench(daemon.unix, "--quick", "--max-size", "64KiB", "--json")
    assert "compiler" in complaint(done, 1)
