"""Prometheus: its tools accept the metrics page, and the rules and the configuration match the page."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from tests.support.deploy import promql, scraped
from tests.support.folders import ROOT
from tests.support.programs import program

FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "hearth.rules.yml"


def promtool(*arguments: str, given: str | None = None) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments],
        check=False,
        input=given,
        capture_output=True,
        text=True,
        cwd=FOLDER,
        timeout=60,
    )
    assert done.returncode == 0 and not (given and done.stderr), done.stdout + done.stderr


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_accepts_the_page() -> None:
    """The linter reports no problem of names, units and HELP."""
    promtool("check", "metrics", given=scraped.page())


def test_promtool_accepts_rules_and_configuration() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", "prometheus.yml")


def test_alerts_fire_on_their_conditions_only() -> None:
    promtool("test", "rules", "hearth.rules.test.yml")


def test_rules_name_existing_metrics() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = scraped.names(scraped.page()) | scraped.of_gpus() | recorded | {"up"}
    for rule in rules():
        assert promql.metrics(rule["expr"]) <= known, rule["expr"]


def test_rules_name_existing_labels() -> None:
    known = scraped.labels(scraped.page())
    everywhere = {"job", "instance"}
    for rule in rules():
        named = promql.metrics(rule["expr"])
        if named <= known.keys():
            assert promql.labels(rule["expr"]) - everywhere <= set().union(*(known[name] for name in named)), rule


def test_every_alert_has_a_runbook() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len({rule["alert"] for rule in alerts}) == len(alerts) > 25
    for rule in alerts:
        assert rule["labels"]["severity"] in ("warning", "critical"), rule
        assert rule["annotations"].keys() == {"summary", "description", "runbook"}, rule
        assert all(len(text) > 10 for text in rule["annotations"].values()), rule


# ---- METRICS.md ----


def test_every_metric_is_described_and_nothing_else() -> None:
    """The tables of METRICS.md list the name, type and labels of every metric."""
    described = _described()
    page = scraped.page()
    families = {family.name: family for family in scraped.families(page)}
    there = {scraped.full_name(family) for family in (*families.values(), *scraped.gpu_families())}
    assert there - described.keys() == set(), "metrics without a description"
    assert described.keys() - there - ONLY_SOMETIMES == set(), "descriptions without a metric"
    for family in families.values():
        kind, labels = described[scraped.full_name(family)]
        assert kind == family.type, family.name
        found = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert not family.samples or found == labels, family.name


ONLY_SOMETIMES = {"hearth_pinned_bytes"}
"""Metrics that only the CUDA backend reports."""
_ROW = re.compile(r"^\| `(?P<name>[a-z0-9_]+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \|")


def _described() -> dict[str, tuple[str, set[str]]]:
    found: dict[str, tuple[str, set[str]]] = {}
    for line in (FOLDER / "METRICS.md").read_text().splitlines():
        if (match := _ROW.match(line)) and match["kind"] in ("counter", "gauge", "histogram"):
            assert match["name"] not in found, f"{match['name']} is described twice"
            found[match["name"]] = match["kind"], set(re.findall(r"`(\w+)`", match["labels"]))
    return found


def test_mapping_names_existing_metrics() -> None:
    text = (FOLDER / "METRICS.md").read_text()
    mapping = text[text.index("## Triton") :]
    described = _described().keys()
    suffixed = {f"{name}{end}" for name in described for end in ("_sum", "_count", "_bucket")}
    named = set(re.findall(r"`((?:hearth|grpc|process)_[a-z0-9_]+)", mapping))
    assert named and named <= described | suffixed, named - described - suffixed
    assert len(re.findall(r"^\| `nv_", mapping, re.M)) >= 25 and len(re.findall(r"`DCGM_FI_", mapping)) >= 30


# ---- the OpenMetrics format ----


def test_openmetrics_parses_the_same_page() -> None:
    families = list(openmetrics(scraped.page_of(scraped.OPENMETRICS)))
    assert {family.name for family in families} >= {"hearth_commands", "hearth_device_up", "hearth_queue_delay_seconds"}
