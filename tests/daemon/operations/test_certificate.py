"""`hearthd make-certificate`: a client with the authority's file reaches a daemon that has the certificate."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import hearth
from hearthd.cli.flags import FLAGS
from hearthd.front.config.loader import load
from tests.support.daemon.harness import StartDaemon, environment, on_cpu


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hearthd", "make-certificate", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


@on_cpu
def test_a_daemon_with_the_certificate_is_reached(start_daemon: StartDaemon, tmp_path: Path) -> None:
    done = make("127.0.0.1", "localhost", "--directory", str(tmp_path / "new"))
    assert done.returncode == 0, done.stderr
    tls = tomllib.loads(done.stdout)["tls"]
    key = Path(tls["key"])
    assert key.stat().st_mode & 0o777 == 0o600 and key.parent == tmp_path / "new"
    daemon = start_daemon(tls=tls)
    port = daemon.grpc.rpartition(":")[2]
    for name in ("127.0.0.1", "localhost"):
        with hearth.connect(f"https://{name}:{port}", ca=tmp_path / "new" / "ca.pem") as node:
            assert node.device(0).zeros(2).get().tolist() == [0, 0]
    message = r"is not trusted: [\w ]+\. Fix: pass the authority that issued it as ca="
    with pytest.raises(hearth.AuthenticationError, match=message):
        hearth.connect(f"https://127.0.0.1:{port}", timeout=3)


def test_existing_files_are_not_replaced(tmp_path: Path) -> None:
    assert make("gpu-box", "--directory", str(tmp_path)).returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(before) == {"ca.pem", "tls.pem", "tls.key"}
    again = make("gpu-box", "--directory", str(tmp_path))
    assert again.returncode == 1 and "exists already. Fix: name another --directory" in again.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_name_with_a_port_is_refused(tmp_path: Path) -> None:
    done = make("gpu-box:7421", "--directory", str(tmp_path))
    assert done.returncode == 2 and "'gpu-box:7421' is neither a host name nor an IP address" in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_help_of_flags_has_their_defaults() -> None:
    config = load(None, {}, {})[0]
    for name, (path, _, text) in FLAGS.items():
        value: object = config
        for part in path:
            value = getattr(value, part)
        shown = "--secure" if value is False else value
        assert text.endswith(f"; default: {shown}"), (name, text, value)
