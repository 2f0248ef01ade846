"""deploy/docker/compose.yml: valid by the specification's schema, consistent with the daemon and the mounted files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hearthd.front.addresses import parse_address
from hearthd.front.config.loader import load
from tests.support.folders import ROOT
from tests.support.programs import program

FOLDER = ROOT / "deploy" / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
DAEMONS = ["hearthd", "hearthd-cpu"]


def config_of(service: str) -> Any:
    """Returns the daemon's configuration from the service's variables and those of the image."""
    own = {"HEARTH_LISTEN_UNIX": "/run/hearth/hearth.sock"}
    return load(environ=own | SERVICES[service]["environment"])[0]


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_compose_file_is_valid() -> None:
    schemas = resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((schemas / "compose-spec.json").read_text())
    errors = list(jsonschema.validators.validator_for(schema)(schema).iter_errors(COMPOSE))
    assert not errors, [f"{error.json_path}: {error.message}" for error in errors]


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_mounted_files_exist(service: str) -> None:
    for mount in [*SERVICES[service]["volumes"]]:
        source = mount.split(":")[0]
        if source.startswith("."):
            assert (FOLDER / source).exists(), mount
            assert mount.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]
    used = set(SERVICES[service].get("networks", ()))
    assert used <= COMPOSE["networks"].keys()
    assert set(SERVICES[service].get("depends_on", ())) <= SERVICES.keys()


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_no_service_has_more_rights_than_it_needs(service: str) -> None:
    settings = SERVICES[service]
    assert settings["read_only"] is True
    assert settings["cap_drop"] == ["ALL"] and "cap_add" not in settings and "privileged" not in settings
    assert settings["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in settings.get("ports", ()))
    image = settings["image"]
    assert image.startswith("hearth:") or image.rpartition(":")[2].lstrip("v").count(".") == 2  # the tag is a version


@pytest.mark.parametrize("service", DAEMONS)
def test_the_daemon_understands_its_settings(service: str) -> None:
    config, settings = config_of(service), SERVICES[service]
    assert settings["healthcheck"]["test"] == ["CMD", "hearthd", "health"]  # uses the Unix socket, which is enabled
    assert seconds(settings["stop_grace_period"]) > config.drain_timeout + 5
    # Only HTTP listens beyond loopback, on an internal network.
    assert parse_address(config.listen.grpc).loopback and parse_address(config.listen.lanes).loopback
    assert list(settings["networks"]) == ["readings"] and COMPOSE["networks"]["readings"]["internal"] is True
    assert "ports" not in settings
    assert f"sockets:{Path(config.unix_path).parent}" in settings["volumes"]


def test_only_cuda_service_reserves_gpus() -> None:
    (device,) = SERVICES["hearthd"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert config_of("hearthd").devices.backend == "cuda" and SERVICES["hearthd"]["build"]["args"]["EXTRA"] == "cuda12"
    assert config_of("hearthd-cpu").devices.backend == "cpu"
    assert SERVICES["hearthd"]["profiles"] == ["gpu"] and SERVICES["hearthd-cpu"]["profiles"] == ["cpu"]


def test_the_client_has_the_sockets_alone() -> None:
    client = SERVICES["client"]
    assert client["network_mode"] == "none" and client["user"] == "7421:7421"
    assert "sockets:/run/hearth:ro" in client["volumes"]


def test_prometheus_finds_the_daemon_and_the_rules(tmp_path: Path) -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    host, port = job["static_configs"][0]["targets"][0].split(":")
    for service in DAEMONS:
        assert host in SERVICES[service]["networks"]["readings"]["aliases"]
        assert int(port) == parse_address(config_of(service).listen.http).port
    own = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert job["job_name"] == own["scrape_configs"][0]["job_name"]  # the rules select by this name
    places = dict(mount.split(":")[:2] for mount in SERVICES["prometheus"]["volumes"])
    for source, target in places.items():  # the paths inside the container
        if source.startswith("."):
            shutil.copy(FOLDER / source, tmp_path / Path(target).name)
            assert Path(target).parent == Path("/etc/prometheus")
    command = [program("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "rules found" in done.stdout, done.stdout + done.stderr


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    settings = SERVICES["grafana"]
    places = {target: FOLDER / source for source, target in (mount.split(":")[:2] for mount in settings["volumes"])}
    provisioning = places["/etc/grafana/provisioning"]
    (source,) = provisioning.glob("datasources/*.yml")
    (datasource,) = yaml.safe_load(source.read_text())["datasources"]
    url = os.path.expandvars(datasource["url"])
    for name, value in settings["environment"].items():
        url = url.replace(f"${name}", value)
    assert url == "http://prometheus:9090"
    assert set(settings["networks"]) & set(SERVICES["prometheus"]["networks"])
    (folder,) = provisioning.glob("dashboards/*.yml")
    (provider,) = yaml.safe_load(folder.read_text())["providers"]
    assert f"{provider['options']['path']}/hearth.json" in places
