"""Metrics and labels that a PromQL expression names. Whether the expression is valid is checked by promtool."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_LABEL_LIST = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?\s*\{([^}]*)\}")
_NAME = re.compile(r"(?<![\w:.])[a-zA-Z_:][a-zA-Z0-9_:]*(?![\w:])(?!\s*\()")
_WORDS = frozenset({"and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset",
                    "bool", "inf", "nan"})  # fmt: skip
_DURATION = re.compile(r"\[[^\]]*\]|\boffset\s+\d+[smhdwy]")
_VARIABLE = {"$__rate_interval": "5m", "$__interval": "1m", "$__range": "1h"}


def metrics(expression: str) -> set[str]:
    """Returns the names of metrics, including recorded ones.

    >>> sorted(metrics('sum by (le) (rate(a_bucket{x="y{z"}[5m])) / on (x) b > 0.5 and c offset 5m'))
    ['a_bucket', 'b', 'c']
    """
    text = _STRING.sub('""', expression)
    text = _DURATION.sub(" ", text)
    text = _LABEL_LIST.sub(" ", text)
    text = re.sub(r"\{[^}]*\}", " ", text)
    return {name for name in _NAME.findall(text) if name.lower() not in _WORDS}


def labels(expression: str) -> set[str]:
    """Returns the labels by which the expression selects, groups or joins.

    >>> sorted(labels('sum by (le, tenant) (rate(a_bucket{x="y", z!~"b"}[5m]))'))
    ['le', 'tenant', 'x', 'z']
    """
    text = _STRING.sub('""', expression)
    names = {label.strip() for match in _LABEL_LIST.finditer(text) for label in match[1].split(",")}
    for match in _SELECTOR.finditer(text):
        names |= {re.split(r"[=!]", matcher)[0].strip() for matcher in match[2].split(",")}
    return names - {""}


def without_variables(expression: str) -> str:
    """Returns the expression with Grafana's variables replaced by plain text."""
    for name, value in _VARIABLE.items():
        expression = expression.replace(name, value)
    return re.sub(r"\$\{?\w+\}?", ".*", expression)


def as_rules(expressions: Iterable[str], path: Path) -> Path:
    """Writes the expressions as recording rules, which promtool checks with Prometheus's own parser."""
    rules = [{"record": f"expression:{index}", "expr": expression} for index, expression in enumerate(expressions)]
    path.write_text(yaml.safe_dump({"groups": [{"name": "expressions", "rules": rules}]}))
    return path
