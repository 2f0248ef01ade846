"""`hearthd health`, and gRPC health probes, against a daemon that requires a token from all other callers."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

import hearth
from tests.support.daemon.harness import DaemonProcess, StartDaemon, environment, hearthd, wait_until
from tests.support.daemon.tenants import tenants

Health = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def guarded(cache: Path, authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon with TLS and a tenant, whose certificate has another name than its address."""
    folder = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("gpu-box.example.org")
    certificate, key = folder / "tls.pem", folder / "tls.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    config, _ = tenants("research", tls={"certificate": str(certificate), "key": str(key)})
    process = DaemonProcess(cache, config, cpu_count=1)
    yield process
    process.stop()
    left = process.left_behind()
    process.remove()
    assert not left


@pytest.fixture
def health(guarded: DaemonProcess) -> Health:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        by_socket = {"HEARTH_LISTEN_UNIX": guarded.unix.removeprefix("unix:")}
        config = ("--config", str(guarded.config_path))
        return hearthd("health", *config, *arguments, env=environment(**by_socket | env))

    return run


def test_grpc_probes_need_no_token(guarded: DaemonProcess, authority: trustme.CA) -> None:
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    named = (("grpc.ssl_target_name_override", "gpu-box.example.org"),)
    with grpc.secure_channel(guarded.grpc, credentials, named) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", "device/0", "hearth.v1.NodeService", "hearth.v1.DeviceService"):
            request = health_pb2.HealthCheckRequest(service=service)
            assert stub.Check(request, timeout=10).status == health_pb2.HealthCheckResponse.SERVING, service
            wrong = (("authorization", "Bearer unknown"),)  # a probe with an invalid token is answered nevertheless
            assert stub.Check(request, timeout=10, metadata=wrong).status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="device/0"), timeout=10)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    with pytest.raises(hearth.HearthError):  # all other callers need a token
        hearth.connect(guarded.unix)


def test_health_over_the_unix_socket(health: Health) -> None:
    for arguments in ((), ("--service", "device/0"), ("--live",)):
        done = health(*arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "SERVING\n", ""), arguments


def test_health_over_tls(health: Health, guarded: DaemonProcess) -> None:
    done = health(HEARTH_LISTEN_UNIX="", HEARTH_LISTEN_GRPC=guarded.grpc)
    assert (done.returncode, done.stdout) == (0, "SERVING\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "env", "code", "says"),
    [
        (("--service", "device/9"), {}, 1, "knows no service 'device/9'"),
        (
            ("--unix", "/nowhere/hearth.sock"),
            {},
            1,
            "unix:/nowhere/hearth.sock cannot be queried: there is no such socket. Fix: start",
        ),
        ((), {"HEARTH_LISTEN_UNIX": "", "HEARTH_LISTEN_GRPC": "127.0.0.1:1"}, 1, "no daemon listens there. Fix: start"),
        ((), {"HEARTH_LISTEN_UNIX": "", "HEARTH_LISTEN_GRPC": ""}, 2, "set listen.unix"),
        ((), {"HEARTH_LISTEN_UNIX": "", "HEARTH_LISTEN_GRPC": "127.0.0.1:0"}, 2, "no fixed port"),
    ],
)
def test_failed_check_is_reported_in_one_line(
    health: Health, arguments: tuple[str, ...], env: dict[str, str], code: int, says: str
) -> None:
    done = health(*arguments, **env)
    assert done.returncode == code
    assert says in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


def test_a_daemon_that_drains_is_alive_and_not_ready(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(drain_timeout="20s")
    arguments = ("health", "--unix", daemon.unix.removeprefix("unix:"))
    with daemon.connect():
        daemon.process.send_signal(signal.SIGTERM)
        wait_until(lambda: daemon.get("/readyz").status == 503)
        ready, live = hearthd(*arguments), hearthd(*arguments, "--live")
    assert ready.returncode == 1 and "NOT_SERVING" in ready.stderr
    assert (live.returncode, live.stdout) == (0, "NOT_SERVING\n")
    assert daemon.stop() == 0
    gone = hearthd(*arguments, "--live")
    assert gone.returncode == 1 and "cannot be queried" in gone.stderr
