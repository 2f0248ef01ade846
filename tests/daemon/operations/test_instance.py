"""`hearthd serve --instance NAME`: further daemons with the same configuration on one machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hearth
from hearthd.cli import instance
from hearthd.front.config.loader import load
from tests.support.daemon.harness import BACKEND, OPEN, environment, hearthd, started, toml
from tests.support.folders import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    path = short_folder()
    yield path
    shutil.rmtree(path)


def test_instance_starts_next_to_a_daemon_with_the_same_configuration(folder: Path, cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_UNIX) as bound:
        address, path = f"127.0.0.1:{taken.getsockname()[1]}", str(folder / "hearth.sock")
        bound.bind(path)
        listen = {"grpc": address, "http": address, "lanes": address, "unix": path}
        devices = {"backend": BACKEND, **({"cpu_count": 1} if BACKEND == "cpu" else {})}
        config = folder / "hearth.toml"
        config.write_text(toml({"listen": listen, "devices": devices, "cache": {"dir": str(cache)}}))
        process = started(
            ["hearthd", "serve", "--config", str(config), "--instance", "two"], environment(**OPEN), subprocess.DEVNULL
        )
        with process:
            assert process.stdout is not None
            try:
                target = f"unix:{folder}/hearth.two.sock"
                assert process.stdout.readline() == f"hearthd instance two: HEARTH_TARGET={target}\n"
                ready = process.stdout.readline()
                assert ready.startswith("hearthd ready grpc=127.0.0.1:") and address not in ready
                with hearth.connect(target) as node:
                    assert node.device(0).zeros(4).get().tolist() == [0, 0, 0, 0]
            finally:
                os.kill(process.pid, signal.SIGTERM)
            assert process.wait(20) == 0


@pytest.mark.parametrize("name", ["", "Two", "two words", "x" * 33, "../two", "two-http"])
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name"):
        instance.overrides(load(environ={})[0], name, {})


def test_refusal_is_one_line() -> None:
    done = hearthd("serve", "--instance", "a b")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("hearthd: --instance 'a b' is not a valid name")


def test_instance_keeps_hosts_and_disabled_listeners() -> None:
    flags: dict[tuple[str, ...], Any] = {
        ("listen", "grpc"): "[::1]:7421", ("listen", "http"): "", ("listen", "http_unix"): "/run/h/http.sock",
        ("listen", "unix"): "/run/h/gpu.sock",
        ("collectives", "listen"): "127.0.0.1:7424", ("collectives", "advertise"): ("127.0.0.1:7424",),
    }  # fmt: skip
    config, _ = load(environ={}, flags=flags)
    assert instance.overrides(config, "b", {}) == {
        ("listen", "grpc"): "[::1]:0",
        ("listen", "lanes"): "127.0.0.1:0",
        ("listen", "unix"): "/run/h/gpu.b.sock",
        ("listen", "http_unix"): "auto",
        ("lanes", "path"): "auto",
        ("collectives", "listen"): "127.0.0.1:0",
        ("collectives", "advertise"): (),
    }
    given: dict[tuple[str, ...], Any] = {("listen", "grpc"): "127.0.0.1:9", ("listen", "lanes"): None}
    assert ("listen", "grpc") not in instance.overrides(config, "b", given)
    assert ("listen", "lanes") in instance.overrides(config, "b", given)


def test_instance_without_a_socket_refers_to_the_addresses() -> None:
    config, _ = load(environ={}, flags={("listen", "unix"): ""})
    assert ("listen", "unix") not in instance.overrides(config, "b", {})
    assert "hearthd ready" in instance.announcement(config, "b")
