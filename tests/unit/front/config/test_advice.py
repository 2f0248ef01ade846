"""Warnings of check-config, output of print-config, and completeness of deploy/hearth.toml."""

from __future__ import annotations

import datetime
import json
import re
import resource
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from hearthd.cli.config_lint import SOON_S, advise
from hearthd.cli.print_config import as_json, as_toml
from hearthd.front.config.loader import Config, ConfigError, load, settings
from hearthd.front.config.tenants import QuotaSettings, TenantSettings
from hearthd.front.daemon.reload_plan import RELOADABLE
from tests.support.folders import ROOT

REFERENCE = ROOT / "deploy" / "hearth.toml"
HASH = "sha256:" + "e" * 63
NOW = 1_800_000_000.0
CPU = {"backend": "cpu"}
OPEN = {"insecure": True, "listen": {"grpc": ":0"}, "devices": {**CPU, "cpu_on_network": True}}


def warnings(**sections: Any) -> dict[str, str]:
    config = Config.model_validate({"devices": CPU, **sections})
    return {each.setting: each.text for each in advise(config, now=NOW)}


@pytest.fixture(autouse=True)
def open_files(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the hard limit on open files that the process sees; 65536 by default."""

    def limit(hard: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, hard))

    limit(65536)
    return limit


def tenant(name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "tokens": [f"{HASH}{len(name) % 10}"], "rights": "all", **more}


def dated(when: float) -> list[dict[str, str]]:
    return [
        {"hash": f"{HASH}0", "name": "ci", "expires": datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat()}
    ]


@pytest.fixture
def pems(tmp_path: Path) -> dict[str, str]:
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    return {"certificate": str(certificate), "key": str(key)}


SOCKET_ALONE = {"listen": {"grpc": "", "lanes": ""}}


def test_the_defaults_are_warned_of_for_being_open_to_every_login() -> None:
    assert warnings(**SOCKET_ALONE) == {}
    found = warnings()
    assert list(found) == ["tenants"] and "every user of this host" in found["tenants"]
    assert "every user" not in str(warnings(tenants=[tenant()], audit={"path": "/tmp/audit.log"}))


@pytest.mark.parametrize(
    ("sections", "setting", "told"),
    [
        (OPEN, "insecure", "no TLS"),
        ({"insecure": True}, "insecure", "remove it"),
        (OPEN, "listen.lanes", ":7423"),
        (OPEN,
         "collectives.listen", "only this node"),
        (OPEN,
         "devices.cpu_on_network", "only what this kernel offers confines it ("),
        ({"insecure": True, "collectives": {"listen": "0.0.0.0:7424"}}, "collectives.advertise", "look up"),
        ({"listen": {"grpc": "", "unix": ""}}, "listen", "no client"),
        ({"devices": {**CPU, "visible": [99]}}, "devices", "would not start"),
        ({"tenants": [tenant(devices=[0, 7])]}, "tenants.a.devices", "[7]"),
        ({"tenants": [tenant(tokens=dated(NOW - 1))]}, "tenants.a.tokens", "expired"),
        ({"tenants": [tenant(tokens=dated(NOW + 86400))]}, "tenants.a.tokens", "expires 20"),
        ({"tenants": [tenant(rights=["read"])]}, "tenants", "admin"),
        ({"tenants": [tenant()]}, "audit.path", "no record is kept"),
        ({"audit": {"path": "/nowhere/audit.log"}}, "audit.path", "cannot append"),
        ({"listen": {"http": "127.0.0.1:7421"}}, "listen.http", "port 7421 is that of listen.grpc"),
        ({"listen": {"http": "127.0.0.1:7423"}}, "listen.lanes", "port 7423 is that of listen.http"),
        ({**OPEN, "listen": {"grpc": "0.0.0.0:5", "http": "127.0.0.1:5"}}, "listen.http", "port 5 is that of"),
    ],
)  # fmt: skip
def test_warnings(sections: dict[str, Any], setting: str, told: str) -> None:
    found = warnings(**sections)
    assert told in found[setting], found


def test_listeners_may_have_one_port_on_two_addresses_or_any_port() -> None:
    assert "listen.http" not in warnings(listen={"grpc": "127.0.0.1:5", "http": "127.0.0.2:5"})
    assert "listen.http" not in warnings(listen={"grpc": "127.0.0.1:0", "http": "127.0.0.1:0"})
    assert "listen.lanes" not in warnings(listen={"lanes": "127.0.0.1:7421"}, lanes={"enabled": False})


@pytest.mark.parametrize(
    "sections",
    [
        {"devices": {**CPU, "visible": [99]}},
        {"audit": {"path": "/nowhere/audit.log"}},
        {"listen": {"http": "127.0.0.1:7421"}},
    ],
)
def test_warnings_say_if_the_daemon_would_not_start_here(sections: dict[str, Any]) -> None:
    config = Config.model_validate({"devices": CPU, **sections})
    assert any(each.blocks_start for each in advise(config, now=NOW))
    assert not any(each.blocks_start for each in advise(Config.model_validate({"devices": CPU}), now=NOW))


def test_a_limit_on_open_files_below_the_budget(open_files: Any) -> None:
    open_files(512)
    assert re.search(r"512, which leaves \d+ connections to gRPC.* raise it to 1024", warnings()["connections"])
    open_files(2000)
    assert "connections" not in warnings(), "the defaults are the most that fit"
    found = warnings(connections={"max": 4000})["connections"]
    needed = int(re.search(r"raise it to (\d+)", found)[1])  # type: ignore[index]
    assert 25000 < needed < 26000
    open_files(needed)
    assert "connections" not in warnings(connections={"max": 4000})
    assert "connections" in warnings(connections={"max_strangers": 2001})
    open_files(resource.RLIM_INFINITY)
    found = warnings(connections={"max": 40000})["connections.max"]
    assert "at most 65536 files" in found and "raise" not in found, "no limit helps"


def test_no_warnings_for_good_configuration(tmp_path: Path, pems: dict[str, str]) -> None:
    found = warnings(
        tenants=[tenant(tokens=dated(NOW + 2 * SOON_S))], audit={"path": str(tmp_path / "audit.log")}, tls=pems,
        listen={"grpc": ":0", "lanes": ":0"}, collectives={"listen": ":7424", "advertise": ["gpu1:7424"]},
        devices={**CPU, "cpu_on_network": True},
    )  # fmt: skip
    assert list(found) == ["devices.cpu_on_network"]


def test_files(tmp_path: Path, pems: dict[str, str]) -> None:
    Path(pems["key"]).chmod(0o640)
    assert "chmod 600" in warnings(tls=pems)["tls.key"]
    Path(pems["key"]).chmod(0o644)
    with pytest.raises(ConfigError, match="every user may read"):
        warnings(tls=pems)
    Path(pems["key"]).unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        warnings(tls=pems)
    file = tmp_path / "hearth.toml"
    file.touch()
    file.chmod(0o646)
    (found,) = advise(Config.model_validate({"devices": CPU, **SOCKET_ALONE}), file)
    assert found.setting == str(file) and "every user may write it" in found.text


def test_a_certificate_that_is_about_to_expire(tmp_path: Path) -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
    issued = trustme.CA().issue_cert("localhost", not_after=soon)
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_bytes(issued.cert_chain_pems[0].bytes())
    key.touch(mode=0o600)
    key.write_bytes(issued.private_key_pem.bytes())
    tls = {"certificate": str(certificate), "key": str(key)}
    config = Config.model_validate({"devices": CPU, "tls": tls, **SOCKET_ALONE})
    (found,) = advise(config)
    assert found.setting == "tls.certificate" and f"{soon:%Y-%m-%d}" in found.text


# ---- print-config ----


def test_every_setting_is_shown_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "hearth.toml"
    file.write_text(f'[sessions]\nmax = 3\n[[tenants]]\nname = "a"\ntokens = ["{HASH}1"]\n')
    config, origins = load(file, {"HEARTH_SESSIONS_LEASE": "7s"}, {("log", "level"): "error"})
    shown = {entry["setting"]: entry for entry in json.loads(as_json(config, origins))}
    assert set(shown) == {".".join(path) for path in settings()}
    expected = {"sessions.max": str(file), "sessions.lease": "HEARTH_SESSIONS_LEASE", "log.level": "the command line"}
    for name, entry in shown.items():
        assert entry["origin"] == expected.get(name, str(file) if name == "tenants" else "default"), name
    assert shown["listen.unix"]["value"] == "auto" and shown["listen.unix"]["resolved"] == config.unix_path
    text = as_toml(config, origins)
    lines = [line for line in text.splitlines() if " = " in line and not line.startswith("[")]
    assert all("  # " in line for line in lines[: len(shown) - 1])
    assert tomllib.loads(text)["sessions"] == {"lease": 7.0, "max": 3, "bind": False, "durable_bytes": 0}


PATHS = st.sets(st.sampled_from([path for path in settings() if path != ("tenants",)]), max_size=20)


@hypothesis_settings(max_examples=30, deadline=None)
@given(PATHS)
def test_printed_configuration_can_be_loaded_again(
    tmp_path_factory: pytest.TempPathFactory, paths: set[tuple[str, ...]]
) -> None:
    config, origins = load(REFERENCE, {})
    kept = {path: origin for path, origin in origins.items() if path in paths}
    file = tmp_path_factory.mktemp("shown") / "hearth.toml"
    file.write_text(as_toml(config, kept))
    assert load(file, {})[0] == config


# ---- reference ----


def test_reference_file_has_every_setting_at_its_default() -> None:
    config, origins = load(REFERENCE, {})
    assert config == Config()
    assert set(origins) == set(settings()) - {("tenants",)}


def test_reference_file_has_every_setting_of_a_tenant() -> None:
    text = REFERENCE.read_text()
    lines = text[text.index("# [[tenants]]") :].splitlines()
    uncommented = [line.removeprefix("#").removeprefix(" ") for line in lines]
    table = "\n".join(line for line in uncommented if not re.match(r"# |allocate, read|that a tenant", line))
    (written,) = tomllib.loads(table)["tenants"]
    assert set(written) == set(TenantSettings.model_fields)
    assert set(written["quotas"]) == set(QuotaSettings.model_fields)


def test_reference_file_marks_reloadable_settings() -> None:
    marked, section = set(), ""
    for line in REFERENCE.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]") + "."
        elif "# (r)" in line:
            marked.add(section + line.split(" = ")[0])
    assert marked == RELOADABLE.keys() - {"tenants"}


def test_a_socket_for_all_without_tenants_is_warned_of() -> None:
    sections = {"listen": {**SOCKET_ALONE["listen"], "unix": "/run/x.sock", "unix_access": "all"}}
    assert "every user of this host" in warnings(**sections)["tenants"]
