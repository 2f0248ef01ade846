"""Configurations that the daemon refuses to start with, and its messages."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import hearth
from tests.support.daemon.harness import BACKEND, StartDaemon, environment, hearthd, on_cpu
from tests.support.daemon.kernels import saxpy_works
from tests.support.daemon.tenants import tenants


def refused_start(*arguments: str) -> str:
    """Starts a daemon that must refuse to start; returns the last line of its error output."""
    quiet = ["--http", "127.0.0.1:0", "--lanes", "", "--log-level", "error"]
    done = hearthd("serve", "--backend", BACKEND, *quiet, *arguments)
    assert done.returncode in (1, 2), done
    lines = done.stderr.strip().splitlines()
    assert lines and lines[-1].startswith("hearthd: ") and "Traceback" not in done.stderr
    return lines[-1]


def test_second_daemon_on_the_same_socket_is_refused(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    told = refused_start("--grpc", "", "--unix", str(daemon.socket))
    assert str(daemon.socket) in told and "already serves" in told
    with daemon.connect() as node:
        saxpy_works(node.device(0))


def test_the_socket_of_a_dead_daemon_is_replaced(start_daemon: StartDaemon) -> None:
    dead = start_daemon()
    dead.process.kill()
    dead.process.wait()
    assert dead.socket.exists()
    arguments = ["--backend", BACKEND, "--cpu-count", "1", "--grpc", "", "--http", "", "--lanes", ""]
    arguments += ["--unix", str(dead.socket)]
    command = [sys.executable, "-m", "hearthd", "serve", "--log-level", "error", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stdout is not None and "ready" in process.stdout.readline()
            with hearth.connect(dead.unix) as node:
                assert node.device(0).ones(3).get().sum() == 3
        finally:
            process.terminate()
            assert process.wait(20) == 0
    assert not dead.socket.exists()


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        told = refused_start("--unix", "", "--grpc", f"127.0.0.1:{port}")
        assert f"port {port}" in told and "in use" in told
        told = refused_start("--unix", "", "--grpc", "127.0.0.1:0", "--http", f"127.0.0.1:{port}")
        assert f"port {port}" in told and "listen.http" in told


def test_addresses_beyond_loopback_are_refused() -> None:
    told = refused_start("--unix", "", "--grpc", "0.0.0.0:0")
    assert "insecure" in told and "0.0.0.0" in told


@on_cpu
def test_kernels_of_the_cpu_stay_on_the_host() -> None:
    assert "cpu_on_network" in refused_start("--unix", "", "--grpc", "0.0.0.0:0", "--insecure")


@on_cpu
def test_cuda_without_a_gpu_is_refused() -> None:
    done = hearthd("serve", "--backend", "cuda", "--grpc", "127.0.0.1:0", "--http", "", "--lanes", "", "--unix", "")
    assert done.returncode == 2 and "devices.backend = 'cuda'" in done.stderr and "Traceback" not in done.stderr


# ---- configuration ----


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[sessions]\nleese = '1s'", "sessions.lease"),
        ("[session]\nlease = '1s'", "[sessions]"),
        ("[sessions]\nlease = 'soon'", "sessions.lease"),
        ("[devices]\ncpu_count = 0", "devices.cpu_count"),
        ("[listen]\ngrpc = 'here'", "here"),
        ("[limits]\nmax_batch_bytes = '1 parsec'", "max_batch_bytes"),
        ("not toml", "TOML"),
    ],
)
def test_a_wrong_configuration_is_explained(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "hearth.toml"
    path.write_text(text)
    for command in ("check-config", "serve"):
        done = hearthd(command, "--config", str(path))
        assert done.returncode == 2 and told in done.stderr and str(path) in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_environment_configures_and_is_checked(tmp_path: Path) -> None:
    done = hearthd("print-config", env=environment(HEARTH_SESSIONS_LEASE="7s"))
    assert "lease = 7.0" in done.stdout and "HEARTH_SESSIONS_LEASE" in done.stdout
    done = hearthd("check-config", env=environment(HEARTH_SESSION_LEASE="7s"))
    assert done.returncode == 2 and "HEARTH_SESSION_LEASE" in done.stderr and "HEARTH_SESSIONS_LEASE" in done.stderr
    assert hearthd("check-config", env=environment(HEARTH_TARGET="unix:/x")).returncode == 0
    done = hearthd("check-config", "--config", str(tmp_path / "missing.toml"))
    assert done.returncode == 2 and "missing.toml" in done.stderr


def test_check_config_reports_and_exit_status(tmp_path: Path) -> None:
    """A file given in either position, with flags and environment variables; warnings as errors on request, and the
    report as JSON."""
    path = tmp_path / "hearth.toml"
    path.write_text("[listen]\ngrpc = ''\n[devices]\nbackend = 'cpu'\n[sessions]\nlease = '5s'\n")
    assert hearthd("check-config", str(path)).stdout == "ok\n" == hearthd("check-config", "-c", str(path)).stdout
    done = hearthd("check-config", str(path), "--config", str(tmp_path / "other.toml"))
    assert done.returncode == 2 and "two files" in done.stderr
    done = hearthd("check-config", str(path), "--grpc", "0.0.0.0:0")
    assert done.returncode == 2 and "insecure" in done.stderr
    env = environment(HEARTH_CONFIG=str(path), HEARTH_INSECURE="true")
    done = hearthd("check-config", env=env)
    assert done.returncode == 0 and done.stdout.startswith("warning: insecure: ") and done.stdout.endswith("warning\n")
    assert hearthd("check-config", "--strict", env=env).returncode == 1
    told = json.loads(hearthd("check-config", "--json", env=env).stdout)
    assert (
        told["ok"]
        and told["starts_here"]
        and told["error"] is None
        and [each["setting"] for each in told["warnings"]] == ["insecure"]
    )
    path.write_text("[listen]\ngrpc = ''\n[devices]\nbackend = 'cpu'\n[audit]\npath = '/nowhere/audit.log'\n")
    done = hearthd("check-config", str(path))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "this host: would not start, 1 warning"
    told = json.loads(hearthd("check-config", "--json", str(path)).stdout)
    assert told["ok"] and not told["starts_here"]
    path.write_text("[devices]\nbackends = 'cpu'\n")
    done = hearthd("check-config", "--json", str(path))
    told = json.loads(done.stdout)
    assert done.returncode == 2 and not told["ok"] and "devices.backend" in told["error"] and not done.stderr


def test_print_config_takes_flags(tmp_path: Path) -> None:
    done = hearthd("print-config", "--json", "--cpu-count", "5", env=environment(HEARTH_SESSIONS_MAX="9"))
    shown = {entry["setting"]: entry for entry in json.loads(done.stdout)}
    assert shown["devices.cpu_count"] == {"setting": "devices.cpu_count", "value": 5, "origin": "the command line"}
    assert shown["sessions.max"]["origin"] == "HEARTH_SESSIONS_MAX" and shown["drain_timeout"]["origin"] == "default"


def test_help_is_plain_text_with_a_whole_line_for_each_command() -> None:
    done = hearthd("--help", env=environment(COLUMNS="80"))
    commands = done.stdout.partition("commands:\n")[2]
    assert "    check-config        check the configuration of the daemon\n" in commands and "..." not in commands
    assert "tls.key for [tls]" in " ".join(hearthd("make-certificate", "--help", env=environment()).stdout.split())


def test_shells_complete_its_commands() -> None:
    env = environment(_HEARTHD_COMPLETE="complete_bash", COMP_WORDS="hearthd check", COMP_CWORD="1")
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    script = shutil.which("hearthd", path=places)
    if script is None:
        pytest.skip("Hearth is on the path and not installed")
    done = subprocess.run([script], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stdout.split() == ["check-config"]


def test_client_only_installation_names_the_missing_extra(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError('no pydantic', name='pydantic')")
    done = subprocess.run(
        [sys.executable, "-m", "hearthd", "serve"],
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "hearth-gpu[server]" in done.stderr and "Traceback" not in done.stderr


def test_daemon_without_tenants_warns_that_its_port_is_open(start_daemon: StartDaemon) -> None:
    """The warning is logged once, at the start: every login of the host may do everything through the TCP port, unless
    tenants are configured."""
    assert start_daemon().log().count("open_to_everybody") == 1
    assert "open_to_everybody" not in start_daemon(**tenants("alice")[0]).log()


@pytest.mark.parametrize(("access", "mode"), [("auto", 0o600), ("owner", 0o600), ("all", 0o666)])
def test_access_mode_of_the_unix_socket(start_daemon: StartDaemon, access: str, mode: int) -> None:
    """Every user may connect if `all` is set, with a token: for example a pod with another user id."""
    config, tokens = tenants("alice", listen={"unix_access": access})
    daemon = start_daemon(**config)
    assert daemon.socket.stat().st_mode & 0o777 == mode
    with daemon.connect(token=tokens["alice"]) as node:
        assert node.tenant == "alice"
    with pytest.raises(hearth.AuthenticationError):
        daemon.connect()


@pytest.mark.parametrize("case", ["certificate", "key", "socket"])
def test_settings_that_no_restart_makes_usable_have_exit_status_2(tmp_path: Path, case: str) -> None:
    """The unit does not restart the daemon then (`RestartPreventExitStatus`)."""
    pems = {name: tmp_path / f"{name}.pem" for name in ("certificate", "key")}
    if case == "key":
        assert hearthd("make-certificate", "localhost", "--directory", str(tmp_path)).returncode == 0
        pems = {"certificate": tmp_path / "tls.pem", "key": tmp_path / "tls.key"}
        pems["key"].chmod(0o644)
    text = "".join(f"{name} = {str(path)!r}\n" for name, path in pems.items())
    path = tmp_path / "hearth.toml"
    path.write_text("" if case == "socket" else f"[tls]\n{text}")
    unix = tmp_path if case == "socket" else tmp_path / "h.sock"
    listen = ["--grpc", "", "--http", "", "--lanes", "", "--unix", str(unix)]
    done = hearthd("serve", "--config", str(path), "--backend", BACKEND, *listen, "--log-level", "error")
    named = {"certificate": "certificate.pem", "key": "tls.key", "socket": "is not a socket"}[case]
    assert done.returncode == 2 and named in done.stderr.strip().splitlines()[-1], done.stderr
