"""deploy/kubernetes: valid by Kubernetes' schemas, and consistent with itself and with the daemon.

If kubectl is installed (no cluster is needed), the two variants are checked as `kubectl kustomize` generates them.
Otherwise only the files of the base are checked.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hearthd.front.addresses import parse_address
from hearthd.front.config.loader import Config, ConfigError, load
from hearthd.front.http.server import PROBES
from hearthd.front.rpc import device_service, node_service
from tests.support.daemon.tenants import filled
from tests.support.folders import ROOT
from tests.support.programs import program

FOLDER = ROOT / "deploy" / "kubernetes"
VARIANTS = ("base", "trusted-network")
VERSIONS = ("1.27", "1.34")
"""Versions of Kubernetes: the oldest supported one, and a recent one."""
HEALTH = {"", node_service.NAME, device_service.NAME, "device/0"}
"""Services whose health front/rpc/health.py reports; the daemon's tests query each of them."""

Object = dict[str, Any]


@functools.cache
def rendered(variant: str) -> tuple[Object, ...]:
    if shutil.which("kubectl") is None and variant == "base":
        settings = (FOLDER / "base" / "hearth.toml").read_text()
        map_ = {"kind": "ConfigMap", "metadata": {"name": "hearth-config"}, "data": {"hearth.toml": settings}}
        mine = plain("base")
        for each in mine:
            each["metadata"].setdefault("namespace", "hearth")
        return (*mine, map_)
    command = [program("kubectl"), "kustomize", str(FOLDER / variant)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def plain(*folders: str) -> list[Object]:
    """Returns the objects in the files of these directories; by default base and examples."""
    files = [file for folder in folders or ("base", "examples") for file in (FOLDER / folder).glob("*.yaml")]
    objects = [each for file in files for each in yaml.safe_load_all(file.read_text())]
    return [each for each in objects if each["kind"] != "Kustomization"]


def the(kind: str, objects: tuple[Object, ...], name: str = "hearth") -> Object:
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def configuration(variant: str) -> Config:
    """Returns the configuration that the daemon reads in its pod."""
    pod = the("DaemonSet", rendered(variant))["spec"]["template"]["spec"]
    environ = {each["name"]: each.get("value", "10.0.0.7") for each in pod["containers"][0]["env"]}
    environ = {name: value.replace("$(POD_IP)", environ["POD_IP"]) for name, value in environ.items()}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(filled((FOLDER / variant / "hearth.toml").read_text()))
        file.flush()
        environ["HEARTH_CONFIG"] = file.name
        return load(environ=environ)[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid(version: str) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed (`make tools`)")
    import kubernetes_validate

    unknown = set()
    for each in plain():
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            unknown.add(each["kind"])
    assert unknown == {"PodMonitor", "PrometheusRule", "Certificate"}  # kinds of operators, which are checked below


@pytest.mark.parametrize("variant", VARIANTS)
def test_rendered_objects_are_valid(variant: str) -> None:
    program("kubectl")
    objects = rendered(variant)
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed (`make tools`)")
    import kubernetes_validate

    for each in objects:
        if each["kind"] not in ("PodMonitor", "PrometheusRule"):
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)
    kinds = [each["kind"] for each in objects]
    assert sorted(set(kinds)) == [
        "ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy", "PodMonitor", "PrometheusRule", "Service",
        "ServiceAccount",
    ]  # fmt: skip
    assert all(each["metadata"].get("namespace", "hearth") == "hearth" for each in objects)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_configuration_is_the_daemon_s_and_its_places_are_mounted(variant: str) -> None:
    objects = rendered(variant)
    pod = the("DaemonSet", objects)["spec"]["template"]["spec"]
    (daemon,) = pod["containers"]
    config = configuration(variant)
    mounts = {mount["mountPath"]: mount["name"] for mount in daemon["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for container in (*pod["initContainers"], daemon):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes.keys()
    assert set(mounts.values()) == volumes.keys()
    (map_,) = (each for each in objects if each["kind"] == "ConfigMap")
    assert volumes[mounts["/etc/hearth/config"]]["configMap"]["name"] == map_["metadata"]["name"]
    assert tomllib.loads(map_["data"]["hearth.toml"]) == tomllib.loads((FOLDER / variant / "hearth.toml").read_text())
    (path,) = (each["value"] for each in daemon["env"] if each["name"] == "HEARTH_CONFIG")
    assert path == "/etc/hearth/config/hearth.toml"
    assert volumes[mounts[str(Path(config.unix_path).parent)]]["hostPath"]["path"] == "/run/hearth"
    if config.tls.certificate:
        secret = volumes[mounts[str(Path(config.tls.certificate).parent)]]["secret"]
        # otherwise the daemon refuses the key
        assert secret["secretName"] == "hearth-tls" and secret["defaultMode"] == 0o440
        assert Path(config.tls.certificate).name == "tls.crt" and Path(config.tls.key).name == "tls.key"
    assert {"/tmp", "/var/cache/hearth", "/dev/shm"} <= mounts.keys()  # the root file system is read-only
    assert pod["terminationGracePeriodSeconds"] > config.drain_timeout + 10
    # Otherwise a service named "hearth" would set HEARTH_PORT in the pod, which is not a setting.
    assert pod["enableServiceLinks"] is False
    assert config.collectives.advertise == ("10.0.0.7:7424",)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ports_are_where_the_daemon_listens(variant: str) -> None:
    objects = rendered(variant)
    daemon = the("DaemonSet", objects)["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
    config = configuration(variant)
    for name in ("grpc", "http", "lanes"):
        address = parse_address(getattr(config.listen, name))
        assert address.wildcard and ports[name] == address.port
    assert ports["collectives"] == parse_address(config.collectives.listen).port
    for name in ("hearth", "hearth-nodes"):
        for port in the("Service", objects, name)["spec"]["ports"]:
            # clients connect to lanes on the host and port that the daemon announces
            assert port["port"] == ports[port["targetPort"]]
    policy = the("NetworkPolicy", objects)["spec"]
    assert {port["port"] for rule in policy["ingress"] for port in rule.get("ports", ())} <= ports.keys()
    monitor = the("PodMonitor", objects)["spec"]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ["http"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_probes_ask_for_what_the_daemon_answers(variant: str) -> None:
    daemon = the("DaemonSet", rendered(variant))["spec"]["template"]["spec"]["containers"][0]
    config = configuration(variant)
    probes = {kind: daemon[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    for kind, probe in probes.items():
        if "grpc" in probe:
            assert not config.tls.certificate, "the kubelet's gRPC probes do not support TLS"
            assert (
                probe["grpc"]["service"] in HEALTH and probe["grpc"]["port"] == parse_address(config.listen.grpc).port
            )
        else:
            get = probe["httpGet"]
            assert get["path"] in PROBES  # served without a token
            assert get["port"] == "http"
            assert get.get("scheme", "HTTP") == ("HTTPS" if config.tls.certificate else "HTTP")
            assert (get["path"] == "/readyz") == (kind == "readiness")
    assert probes["liveness"]["httpGet"]["path"] == "/healthz"  # the pod must not be killed because of a drain
    assert any("grpc" in probe for probe in probes.values()) == (variant == "trusted-network")


@pytest.mark.parametrize("variant", VARIANTS)
def test_labels_and_selectors_agree(variant: str) -> None:
    objects = rendered(variant)
    daemons = the("DaemonSet", objects)["spec"]
    labels = daemons["template"]["metadata"]["labels"].items()
    selectors = [
        daemons["selector"]["matchLabels"],
        the("Service", objects)["spec"]["selector"],
        the("Service", objects, "hearth-nodes")["spec"]["selector"],
        the("NetworkPolicy", objects)["spec"]["podSelector"]["matchLabels"],
        the("PodMonitor", objects)["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector and selector.items() <= labels for selector in selectors)
    assert the("Service", objects)["spec"]["internalTrafficPolicy"] == "Local"
    account = the("ServiceAccount", objects)
    assert daemons["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert account["automountServiceAccountToken"] is False
    assert daemons["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


@pytest.mark.parametrize("each", [each for each in plain() if each["kind"] in ("DaemonSet", "Pod")], ids=str)
def test_pods_meet_the_restricted_security_level(each: Object) -> None:
    pod = each["spec"]["template"]["spec"] if each["kind"] == "DaemonSet" else each["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostIPC", "hostPID", "hostNetwork"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False and context["readOnlyRootFilesystem"] is True
        assert context["capabilities"]["drop"] == ["ALL"]
        assert container["resources"]["requests"] and container["resources"]["limits"]
        if container["name"] == "socket-directory":  # the only exception, with the capability that it needs
            assert context["capabilities"]["add"] == ["CHOWN"] and container["command"][0] == "chown"
        else:
            assert "add" not in context["capabilities"] and "runAsUser" not in context


def test_example_clients_match_the_configuration() -> None:
    config = configuration("base")
    pods = {each["metadata"]["name"]: each["spec"] for each in plain() if each["kind"] == "Pod"}
    by_socket, by_service = pods["hearth-client-socket"], pods["hearth-client-service"]
    # A uid on a shared hostPath is not an identity, because any user who may create the pod chooses it. Clients need a
    # token.
    assert not any(tenant.users or tenant.groups for tenant in config.tenants) and config.listen.unix_access == "all"
    (token,) = (each["valueFrom"]["secretKeyRef"] for each in by_socket["containers"][0]["env"])
    assert token == {"name": "hearth-token", "key": "token"}
    assert by_socket["volumes"][0]["hostPath"]["path"] == str(Path(config.unix_path).parent)
    environ = {each["name"]: each.get("value") for each in by_service["containers"][0]["env"]}
    service = the("Service", rendered("base"))
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert environ["HEARTH_TARGET"] == f"https://{name}:{service['spec']['ports'][0]['port']}"
    certificate = next(each for each in plain() if each["kind"] == "Certificate")["spec"]
    assert name in certificate["dnsNames"] and certificate["secretName"] == "hearth-tls"
    monitor = the("PodMonitor", rendered("base"))["spec"]["podMetricsEndpoints"][0]
    assert monitor["tlsConfig"]["serverName"] in certificate["dnsNames"]
    tokens = next(each for each in plain() if each["kind"] == "Secret")
    assert monitor["authorization"]["credentials"] == {"name": tokens["metadata"]["name"], "key": "token"}


def test_sample_tokens_are_not_accepted() -> None:
    """The base contains placeholders: the daemon does not start until each has been replaced."""
    text = (FOLDER / "base" / "hearth.toml").read_text()
    assert text.count("sha256:") == text.count("sha256:PUT-") == 2
    with pytest.raises(ConfigError, match="placeholder"):
        load(FOLDER / "base" / "hearth.toml", {})


def test_alert_rules_are_those_of_prometheus() -> None:
    (rule,) = yaml.safe_load_all((FOLDER / "base" / "prometheusrule.yaml").read_text())
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "hearth.rules.yml").read_text())
    assert rule["apiVersion"] == "monitoring.coreos.com/v1" and rule["kind"] == "PrometheusRule"
    assert rule["spec"] == rules, "run `python deploy/kubernetes/generate.py`"
    # Checks that only fields are used that both Prometheus' own format and the operator's format accept.
    assert rule["spec"].keys() == {"groups"}
    keys = {"alert", "record", "expr", "for", "keep_firing_for", "labels", "annotations"}
    for group in rule["spec"]["groups"]:
        assert group.keys() <= {"name", "interval", "limit", "labels", "query_offset", "rules"}
        assert all(each.keys() <= keys for each in group["rules"])
    monitor = the("PodMonitor", tuple(plain()))["spec"]
    job = the("DaemonSet", tuple(plain()))["spec"]["template"]["metadata"]["labels"][monitor["jobLabel"]]
    assert f'job="{job}"' in str(rules)  # the rules select by this label
