"""Wraps the alert rules of deploy/prometheus for the Prometheus operator: base/prometheusrule.yaml.

    python deploy/kubernetes/generate.py

A test says when it has to be run again.
"""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "hearth.rules.yml"
TARGET = HERE / "base" / "prometheusrule.yaml"


def generated() -> str:
    """The text of prometheusrule.yaml."""
    rules = yaml.safe_load(RULES.read_text())
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "hearth", "labels": {"app.kubernetes.io/name": "hearth"}},
        "spec": rules,
    }
    head = "# Made by ../generate.py from deploy/prometheus/hearth.rules.yml: change that, and run it again.\n"
    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


if __name__ == "__main__":
    TARGET.write_text(generated())
