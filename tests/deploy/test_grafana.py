"""The dashboard: every query names metrics that a daemon exports, and the format is that of Grafana."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.support.deploy import promql, scraped
from tests.support.folders import ROOT
from tests.support.programs import program

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "hearth.json").read_text())
UNITS = {"short", "ops", "percentunit", "celsius", "watt", "hertz", "bytes", "Bps", "s", "dateTimeFromNow"}
"""Units of Grafana that the dashboard uses: bytes uses multiples of 1024, Bps multiples of 1024 per second."""
KINDS = {"row", "timeseries", "stat", "table"}
LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def panels() -> Iterator[dict[str, Any]]:
    """Yields all panels, including those in collapsed rows."""
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries() -> list[tuple[str, str, str]]:
    """Returns (title, expression, legend) of each query, including annotations, with variables replaced."""
    found = [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in panels()
        for target in panel.get("targets", [])
    ]
    found += [
        (each["name"], each["expr"], each["titleFormat"]) for each in DASHBOARD["annotations"]["list"] if "expr" in each
    ]
    return [(title, promql.without_variables(expression), legend) for title, expression, legend in found]


def test_queries_are_promql(tmp_path: Path) -> None:
    path = promql.as_rules((expression for _, expression, _ in queries()), tmp_path / "queries.yml")
    done = subprocess.run(
        [program("promtool"), "check", "rules", str(path)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_queries_name_existing_metrics() -> None:
    known = scraped.names(scraped.page()) | scraped.of_gpus()
    assert len(queries()) > 80
    for title, expression, _ in queries():
        named = promql.metrics(expression)
        assert named and named <= known, (title, named - known)


def test_queries_and_legends_name_existing_labels() -> None:
    known = scraped.labels(scraped.page())
    for family in scraped.gpu_families():
        known[scraped.full_name(family)] = {label for sample in family.samples for label in sample.labels}
    everywhere = {"job", "instance"}
    for title, expression, legend in queries():
        there = everywhere.union(*(known[name] for name in promql.metrics(expression)))
        assert promql.labels(expression) <= there, title
        assert set(LABEL.findall(legend)) <= there, title
        grouped = re.search(r"\bby \(([^)]*)\)", expression)
        if grouped:
            assert set(LABEL.findall(legend)) <= {each.strip() for each in grouped[1].split(",")}, (title, legend)


def test_variables_are_declared_and_found() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "instance", "device", "tenant"}
    text = json.dumps(DASHBOARD["panels"])
    assert set(re.findall(r"\$\{?([a-z]\w*)", text)) == variables.keys()
    known = scraped.labels(scraped.page())
    for variable in variables.values():
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+)\{.*\}, (\w+)\)", variable["query"]["query"])
            assert match and (match[2] in known[match[1]] or match[2] == "instance"), variable


def test_dashboard_has_the_format_of_grafana() -> None:
    assert DASHBOARD["uid"] == "hearth" and DASHBOARD["id"] is None and DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["title"] and DASHBOARD["time"] and DASHBOARD["refresh"]
    everything = list(panels())
    numbers = [panel["id"] for panel in everything]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in everything if panel["type"] == "row"]
    assert titles == ["Overview", "Devices", "Memory", "Work", "Tenants", "Transfers", "Faults", "Collectives", "Front"]
    for panel in everything:
        assert panel["type"] in KINDS and panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"].get("unit", "short") in UNITS, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_panels_do_not_lie_on_each_other() -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in DASHBOARD["panels"]]
    for title, at in places:
        assert at["x"] >= 0 and at["y"] >= 0 and at["w"] > 0 and at["h"] > 0 and at["x"] + at["w"] <= 24, title
    for (one, a), (other, b) in itertools.combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (one, other)


def test_provisioning_files() -> None:
    (source,) = yaml.safe_load((FOLDER / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"] == "$PROMETHEUS_URL" and source["isDefault"]
    (provider,) = yaml.safe_load((FOLDER / "provisioning/dashboards/hearth.yml").read_text())["providers"]
    assert provider["type"] == "file" and provider["options"]["path"].startswith("/var/lib/grafana")
