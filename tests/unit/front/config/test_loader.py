"""Configuration: layers, units, and errors that name the key, its origin and the nearest valid one."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth_proto.calls import socket_path
from hearthd.front.addresses import Address, default_unix_path, identity_path, parse_address
from hearthd.front.config.loader import Config, ConfigError, check_exposure, load, settings
from hearthd.front.config.section import parse_bytes, parse_seconds
from hearthd.front.gpu.nvml import cuda_count
from tests.support.folders import ROOT


def file(directory: Path, text: str) -> Path:
    path = directory / "hearth.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    config, origins = load(environ={})
    assert (config.listen.grpc, config.listen.http) == ("127.0.0.1:7421", "127.0.0.1:7422")
    assert (config.listen.lanes, config.lane_address) == ("127.0.0.1:7423",) * 2
    assert (config.sessions.lease, config.drain_timeout, config.devices.cpu_count) == (30.0, 10.0, 2)
    assert origins == {}


def test_defaults_are_those_of_the_shipped_file() -> None:
    """`deploy/hearth.toml` contains every setting with its default value, except for tenants."""
    shipped = ROOT / "deploy" / "hearth.toml"
    assert load(shipped, {})[0] == load(environ={})[0]
    named = {(section, key) for section, keys in _sections(tomllib.loads(shipped.read_text())) for key in keys}
    there_are = {(section, key) for section, keys in _sections(load(environ={})[0].model_dump()) for key in keys}
    assert there_are - named == {("", "tenants")} and not named - there_are


def test_documented_names_of_the_unix_sockets_are_those_of_the_daemon() -> None:
    config = Config.model_validate({"listen": {"unix": "/x/t.sock", "http_unix": "auto"}})
    derived = {config.http_path, config.lane_path, socket_path(config.unix_path), identity_path(config.unix_path)}
    for page in ("deploy/hearth.toml", "docs/operations.md", "server/hearthd/front/config/settings.py"):
        named = set(re.findall(r"/x/t[\w.-]*\w", (ROOT / page).read_text()))
        assert named == derived | {config.unix_path}, page


def _sections(settings: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Yields the keys of each section; keys without a section under the empty string."""
    yield "", [key for key, value in settings.items() if not isinstance(value, dict)]
    yield from ((key, list(value)) for key, value in settings.items() if isinstance(value, dict))


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        'insecure = false\ndrain_timeout = "1m"\n[devices]\nbackend = "cpu"\nvisible = [0, 2]\nmemory_limit = "8GiB"\n'
        '[sessions]\nlease = "500ms"\nmax = 3\n',
    )
    environ = {"HEARTH_SESSIONS_MAX": "5", "HEARTH_DEVICES_VISIBLE": "1,3", "HEARTH_TARGET": "x", "PATH": "y"}
    environ["HEARTH_CPU_RACECHECK"] = "1"
    config, origins = load(path, environ, {("sessions", "max"): 7, ("listen", "grpc"): None})
    assert config.devices.memory_limit == 8 << 30
    assert config.devices.visible == (1, 3)
    assert config.sessions.lease == 0.5 and config.sessions.max == 7
    assert config.drain_timeout == 60
    assert origins["sessions", "max"] == "the command line"
    assert origins["devices", "visible"] == "HEARTH_DEVICES_VISIBLE"
    assert origins["devices", "backend"] == str(path)


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, "[sessions]\nmax = 9\n")
    assert load(environ={"HEARTH_CONFIG": str(path)})[0].sessions.max == 9


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[devices]\nbackends = 'cpu'\n", ["devices.backends", "devices.backend"]),
        ("[device]\nbackend = 'cpu'\n", ["device is not a setting", "[devices]"]),
        ("[auth]\nhttp_on_loopback = true\n", ["auth.http_on_loopback was removed", "observe", "metrics_on_loopback"]),
        ("[http]\nhosts = ['a:7422']\n", ["http.hosts", "a:7422", "without a port"]),
        ("[sessions]\nbackend = 'cpu'\n", ["sessions.backend", "devices.backend"]),
        ("drain_timout = '1s'\n", ["drain_timout", "drain_timeout"]),
        ("[devices]\nbackend = 'rocm'\n", ["devices.backend", "rocm", "'cuda'"]),
        ("[sessions]\nlease = '30 parsecs'\n", ["sessions.lease", "parsecs", '"30s"']),
        ("[sessions]\nmax = 0\n", ["sessions.max", "0"]),
        ("[cache]\nmax_bytes = '1 lot'\n", ["cache.max_bytes", "1 lot", "GiB"]),
        ("[listen]\ngrpc = '7421'\n", ["listen.grpc", "7421", "127.0.0.1:7421"]),
        ("[listen]\nunix = 'relative.sock'\n", ["listen.unix", "absolute"]),
        ("[devices]\nvisible = []\n", ["devices.visible"]),
        ("[devices]\nvisible = [1, 1]\n", ["devices.visible", "once"]),
        ("[listen]\ngrpc = '0.0.0.0:1'\n", ["listen.grpc", "insecure = true"]),
        ("[listen]\nlanes = '0.0.0.0:1'\n", ["listen.lanes", "insecure = true"]),
        ("insecure = true\n[listen]\nlanes = ':1'\n[devices]\nbackend = 'cpu'\n", ["listen.lanes", "native code"]),
        ("insecure = true\n[listen]\ngrpc = ':1'\n[devices]\nbackend = 'cpu'\n", ["cpu_on_network", "native code"]),
        ("devices = 3\n", ["devices", "section"]),
        ("this is not toml", ["is not valid TOML"]),
    ],
)
def test_errors_name_file_key_and_remedy(tmp_path: Path, text: str, words: list[str]) -> None:
    path = file(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(path, {})
    for word in words:
        assert word in str(error.value)
    if not re.match(r"listen\.\w+ = ", str(error.value)):
        assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_errors_of_environment_and_flags() -> None:
    with pytest.raises(
        ConfigError, match="HEARTH_DEVICE_BACKEND is not a setting; the nearest is HEARTH_DEVICES_BACKEND"
    ):
        load(environ={"HEARTH_DEVICE_BACKEND": "cpu"})
    with pytest.raises(ConfigError, match=r"HEARTH_SESSIONS_MAX: sessions.max"):
        load(environ={"HEARTH_SESSIONS_MAX": "many"})
    with pytest.raises(ConfigError, match=r"the command line: devices.backend"):
        load(environ={}, flags={("devices", "backend"): "rocm"})
    with pytest.raises(ConfigError, match="cannot be read"):
        load("/nonexistent/hearth.toml", {})


@given(st.sampled_from(list(settings())), st.text("abcdefgh_", min_size=1, max_size=3))
def test_any_misspelt_variable_is_refused(where: tuple[str, ...], extra: str) -> None:
    name = "HEARTH_" + "_".join(where).upper() + "_" + extra.upper()
    with pytest.raises(ConfigError, match="the nearest is HEARTH_"):
        load(environ={name: "1"})


def test_exposure() -> None:
    flags: dict[tuple[str, ...], Any] = {("listen", "grpc"): "0.0.0.0:7421", ("insecure",): True}
    config, _ = load(environ={}, flags=flags)
    check_exposure(config, "cuda")
    with pytest.raises(ConfigError, match="cpu_on_network"):
        check_exposure(config, "cpu")
    config, _ = load(environ={}, flags={**flags, ("devices", "cpu_on_network"): True})
    check_exposure(config, "cpu")
    check_exposure(Config(), "cpu")


@given(st.integers(0, 10**6))
def test_units(number: int) -> None:
    assert parse_seconds(f"{number}ms") == pytest.approx(number / 1000)
    assert parse_seconds(f"{number}us") == pytest.approx(number / 1e6)
    assert parse_seconds(f"{number}s") == parse_seconds(number) == parse_seconds(f" {number} ") == number
    assert parse_seconds(f"{number}m", 60 * number) == 60 * number
    assert parse_bytes(f"{number}MiB") == parse_bytes(f"{number} mib") == number << 20
    assert parse_bytes(number) == parse_bytes(str(number)) == parse_bytes(f"{number}B") == number


@given(st.text(max_size=8))
def test_units_never_surprise(text: str) -> None:
    for parse in (parse_seconds, parse_bytes):
        try:
            assert parse(text) >= 0
        except ValueError as error:
            assert "write e.g." in str(error)


@pytest.mark.parametrize(
    ("section", "key", "values"),
    [
        ("", "drain_timeout", ("inf", "nan", "-1", "-inf", "1e20", '"577h"', '"9999999h"', "1" + "0" * 400)),
        ("sessions", "lease", ("inf", "nan", '"9999999h"', f'"{"9" * 400}s"')),
        ("collectives", "timeout", ("inf",)),
        ("compile", "timeout", ("inf", "2147484")),  # longer than a socket can wait
        ("compile", "memory", ("9223372036854775808", '"9999999TiB"', f'"{"9" * 400}"')),
        ("limits", "max_unacked_bytes", ("9223372036854775808",)),
        ("devices", "memory_limit", ("-1", "9223372036854775808")),
    ],
)
def test_values_that_the_daemon_cannot_work_with_are_refused(
    tmp_path: Path, section: str, key: str, values: tuple[str, ...]
) -> None:
    header = f"[{section}]\n" if section else ""
    for value in values:
        with pytest.raises(ConfigError, match=key):
            load(file(tmp_path, f"{header}{key} = {value}\n"), {})


def test_path_of_a_socket_with_nul_is_refused(tmp_path: Path) -> None:
    for key in ("unix", "http_unix"):
        with pytest.raises(ConfigError, match=rf"listen\.{key}: .*NUL"):
            load(file(tmp_path, f'[listen]\n{key} = "/a\\u0000b"\n'), {})


@pytest.mark.parametrize(
    ("text", "setting", "owner"),
    [
        ('listen = { unix = "%s", http_unix = "%s" }', "listen.http_unix", "listen.unix"),
        ('listen = { unix = "%s", http_unix = "%s.call" }', "listen.http_unix", "the socket for calls"),
        ('listen = { unix = "%s", http_unix = "%s-identity" }', "listen.http_unix", "the identity socket"),
        ('listen = { unix = "%s", http_unix = "%s.lane" }', "listen.http_unix", "lanes.path"),
        ('listen = { unix = "%s" }\nlanes = { path = "%s" }', "lanes.path", "listen.unix"),
        (
            'listen = { unix = "%s", http_unix = "auto" }\nlanes = { path = "%s-http" }',
            "listen.http_unix",
            "lanes.path",
        ),
    ],
)
def test_two_unix_sockets_on_one_path_are_refused(tmp_path: Path, text: str, setting: str, owner: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match=rf"{setting}: .* is also the path of {owner}.*; set {setting} to another"):
        load(file(tmp_path, text % (tmp_path / "s", tmp_path / "link" / "s")), {})


def test_sockets_that_are_not_opened_may_have_any_path(tmp_path: Path) -> None:
    load(file(tmp_path, '[listen]\nunix = ""\nhttp_unix = "/x/s.call"\n[lanes]\npath = "/x/s.call"'), {})
    load(file(tmp_path, '[listen]\nunix = "/x/s"\nhttp_unix = "/x/s.lane"\n[lanes]\nenabled = false'), {})


def test_longest_duration_is_a_time_limit_of_a_socket() -> None:
    with socket.socket() as end:
        end.settimeout(parse_seconds("576h"))


def test_addresses() -> None:
    assert parse_address("[::1]:5") == Address("::1", 5) and str(Address("::1", 5)) == "[::1]:5"
    assert parse_address("localhost:0").loopback and parse_address("127.9.9.9:1").loopback
    assert not parse_address(":5").loopback and not parse_address("gpu.example:5").loopback
    for wrong in ("", "x", "1.2.3.4", "::1:5", "h:70000", "h:-1", "h:+1"):
        with pytest.raises(ValueError, match="is not an address"):
            parse_address(wrong)


def test_default_unix_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert default_unix_path({"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/user/7/hearth/hearth.sock"
    assert default_unix_path({}).endswith("/.cache/hearth/hearth.sock")
    monkeypatch.setattr("os.access", lambda path, mode: True)
    assert default_unix_path({"XDG_RUNTIME_DIR": "/run/user/7"}) == "/run/hearth/hearth.sock"


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 4), ("", 0), ("0", 1), ("3,1", 2), ("0,9,1", 1), ("-1", 0), ("GPU-abc,MIG-def", 2), ("1, 2", 2), ("no", 0)],
)
def test_cuda_visible_devices(visible: str | None, count: int) -> None:
    assert cuda_count(4, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == count


def hearthd(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = ":".join(str(ROOT / part) for part in ("proto", "server"))
    return subprocess.run(
        [sys.executable, "-m", "hearthd", *arguments], capture_output=True, text=True, timeout=30,
        env={"PYTHONPATH": path, "HOME": "/nonexistent", "PATH": "/usr/bin:/bin", **environ}, check=False,
    )  # fmt: skip


def test_command_line(tmp_path: Path) -> None:
    example = ROOT / "deploy" / "hearth.toml"
    assert hearthd("check-config", "--config", str(example)).returncode == 0
    printed = hearthd("print-config", HEARTH_SESSIONS_MAX="5")
    assert printed.returncode == 0 and "max = 5  # HEARTH_SESSIONS_MAX" in printed.stdout
    again = file(tmp_path, printed.stdout)
    assert load(again, {})[0].sessions.max == 5, "the printed configuration can be loaded"
    assert hearthd("version").stdout == hearthd("--version").stdout
    assert hearthd("--version").stdout.startswith("hearthd ")
    wrong = hearthd("check-config", "--config", str(file(tmp_path, "[devices]\nbackends = 1\n")))
    assert wrong.returncode == 2
    assert wrong.stderr.count("\n") == 1 and "Traceback" not in wrong.stderr
    assert hearthd("serve", "--backend", "cuda", "--unix", "", CUDA_VISIBLE_DEVICES="").returncode == 2
    assert hearthd("serve", "--no-such-flag").returncode == 2


def test_entry_points_import_few_modules() -> None:
    """Device processes import the main module again, and must not import the front with it."""
    code = (
        "import sys, hearthd.cli.main, hearthd.__main__; "
        "print([m for m in sys.modules if m.split('.')[0] in %r or m == %r])"
    )
    heavy = ["grpc", "argparse", "aiohttp", "pydantic", "structlog", "uvloop", "google"]
    path = ":".join(str(ROOT / part) for part in ("proto", "server"))
    out = subprocess.run(
        [sys.executable, "-c", code % (heavy, "hearthd.front")], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": path},
    )  # fmt: skip
    assert out.stdout.strip() == "[]"


def test_the_front_imports_no_cuda_and_no_device() -> None:
    banned = ("hearthd.device", "cupy", "cuda")
    code = f"import sys, hearthd.front.daemon.daemon; print([m for m in sys.modules if m.startswith({banned})])"
    path = ":".join(str(ROOT / part) for part in ("proto", "server"))
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": path}
    )
    assert out.stdout.strip() == "[]"


def test_removed_setting_in_the_environment_is_named() -> None:
    with pytest.raises(ConfigError, match=r"HEARTH_AUTH_HTTP_ON_LOOPBACK was removed: .*metrics_on_loopback"):
        load(environ={"HEARTH_AUTH_HTTP_ON_LOOPBACK": "true"})
    config, _ = load(environ={"HEARTH_HTTP_HOSTS": "hearthd, *.Example.org."})
    assert config.http.hosts == ("hearthd", "*.example.org")
