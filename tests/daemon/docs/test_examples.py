"""The example configurations: each is loaded unchanged, and a daemon is started from it and used as described. Ports,
files and tokens are replaced by the test."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hearth
from hearthd.front.config.loader import load, settings
from tests.support.daemon.authority import Authority
from tests.support.daemon.harness import BACKEND, DaemonProcess, hearthd
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.tenants import filled, new_token, token_hash
from tests.support.folders import ROOT

DEPLOY = ROOT / "deploy"
EXAMPLES = sorted((DEPLOY / "examples").glob("*.toml"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("examples") / "tls")


@pytest.fixture
def start(cache: Path, authority: Authority, tmp_path: Path) -> Iterator[Callable[..., DaemonProcess]]:
    started: list[DaemonProcess] = []

    def begin(name: str, tokens: dict[str, str]) -> DaemonProcess:
        """Starts a daemon from an example; fills `tokens` with a token for each tenant."""
        config = tomllib.loads((DEPLOY / "examples" / name).read_text())
        config["drain_timeout"] = "0s"
        config["devices"] = {**config.get("devices", {}), "backend": BACKEND}
        listen = config["listen"]
        listen.pop("unix", None)  # the test harness sets its own socket
        for key in ("grpc", "http", "lanes"):
            listen[key] = listen.get(key) and "127.0.0.1:0"
        if "tls" in config:
            certificate, key = authority.issue("localhost", "127.0.0.1")
            config["tls"] |= {"certificate": str(certificate), "key": str(key)}
            if "client_ca" in config["tls"]:
                config["tls"]["client_ca"] = str(authority.pem)
        if "collectives" in config:
            config["collectives"]["listen"] = "127.0.0.1:0"
        if "audit" in config:
            config["audit"]["path"] = str(tmp_path / "audit.log")
        for table in config.get("tenants", []):
            for token in table.get("tokens", []):
                tokens[table["name"]] = new_token()
                token["hash"] = token_hash(tokens[table["name"]])
                if "expires" in token:
                    token["expires"] = token["expires"].isoformat()
            if "users" in table:
                table["users"] = [os.getuid()]
        started.append(DaemonProcess(cache, config, 2))
        return started[-1]

    yield begin
    left: list[str] = []
    for process in started:
        process.stop()
        left += process.left_behind()
        process.remove()
    assert not left


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_loads_unchanged(path: Path, tmp_path: Path) -> None:
    sample, path = path, tmp_path / path.name
    path.write_text(filled(sample.read_text()))
    config, origins = load(path, {})
    assert origins and set(origins.values()) == {str(path)}
    written = tomllib.loads(path.read_text())
    assert {section for section, *_ in origins} == set(written)
    assert config.insecure is False, "no example sets insecure"
    printed = hearthd("print-config", str(path), "--json")
    assert printed.returncode == 0 and len(json.loads(printed.stdout)) == len(list(settings()))


def test_no_sample_s_token_is_accepted(tmp_path: Path) -> None:
    """A remaining placeholder is named in the error: a configuration is never accepted with a publicly known token."""
    for path in (DEPLOY / "kubernetes" / "base" / "hearth.toml", *EXAMPLES):
        if "tokens" in path.read_text():
            done = hearthd("check-config", str(path))
            assert (
                done.returncode == 2 and "hash: this is a placeholder" in done.stderr and "hearthd token" in done.stderr
            )
    path = tmp_path / "hearth.toml"
    for word in ("foo", "test", "hearth_changeme", ""):
        path.write_text(f'[[tenants]]\nname = "a"\ntokens = ["{token_hash(word)}"]\n')
        done = hearthd("check-config", str(path))
        assert done.returncode == 2 and "tenants[0].tokens[0].hash" in done.stderr and repr(word) in done.stderr


def test_one_user(start: Callable[..., DaemonProcess]) -> None:
    daemon = start("one-user.toml", {})
    with daemon.connect() as node:
        saxpy_works(node.device(0))
    assert daemon.get("/status").status == 200
    assert oct(daemon.socket.stat().st_mode & 0o777) == "0o600"


def test_team(start: Callable[..., DaemonProcess], authority: Authority, tmp_path: Path) -> None:
    tokens: dict[str, str] = {}
    daemon = start("team.toml", tokens)
    target = f"https://{daemon.grpc}"
    with hearth.connect(target, token=tokens["research"], ca=authority.pem) as node:
        assert node.tenant == "research" and len(node.devices) >= 1
        saxpy_works(node.device(0))
    with hearth.connect(target, token=tokens["ci"], ca=authority.pem) as node:
        assert [device.ordinal for device in node.devices] == [0]
    with daemon.connect() as node:
        assert node.tenant == "operators"
    with hearth.connect(target, token=tokens["inference"], ca=authority.pem) as node:
        x = node.device(0).ones(4)
        with pytest.raises(hearth.HearthError) as caught:
            x.publish("weights")
        assert caught.value.reason == "PERMISSION_DENIED"
    with pytest.raises(hearth.AuthenticationError):
        hearth.connect(target, ca=authority.pem)
    daemon.stop()
    assert hearthd("audit", "verify", str(tmp_path / "audit.log")).returncode == 0


def test_cluster_node(start: Callable[..., DaemonProcess], authority: Authority) -> None:
    tokens: dict[str, str] = {}
    daemon = start("cluster-node.toml", tokens)
    certificate, key = authority.issue("training.cluster.example")
    target = f"https://{daemon.grpc}"
    with hearth.connect(target, ca=authority.pem, certificate=certificate, key=key) as node:
        assert node.tenant == "training"
        saxpy_works(node.device(0))
    with pytest.raises(hearth.AuthenticationError, match="requires a client certificate"):
        hearth.connect(target, ca=authority.pem, token=tokens["prometheus"])
    # On loopback HTTP is plain and open; beyond loopback it uses TLS and requires the token: see the tests of TLS.
    assert "hearth_sessions" in daemon.get("/metrics", token=tokens["prometheus"]).body
