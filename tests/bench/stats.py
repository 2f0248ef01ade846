"""Samples, their summary, and a row of the result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hearth.cli.bench.sampling import quantile

Samples = dict[str, list[float]]
"""Samples that a worker measured, by name."""


@dataclass(frozen=True)
class Summary:
    """Median and spread of `n` samples."""

    median: float
    p10: float
    p90: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Returns the summary of `samples`. Raises `ValueError` if there are none."""
        if not samples:
            raise ValueError("no samples")
        ordered = sorted(samples)
        return cls(quantile(ordered, 0.5), quantile(ordered, 0.1), quantile(ordered, 0.9), len(ordered))


@dataclass(frozen=True)
class Row:
    """A line of the result. `ratio` is Hearth's median divided by the baseline's, whichever direction is better."""

    group: str
    what: str
    unit: str
    hearth: Summary
    better: Literal["higher", "lower"] = "higher"
    baseline_name: str = ""
    baseline: Summary | None = None
    at_least: float | None = None
    aim: float | None = None
    """Bounds on the ratio, or on the value itself if there is no baseline."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Hearth's median divided by the baseline's; None without a baseline."""
        if self.baseline is None or self.baseline.median == 0:
            return None
        return self.hearth.median / self.baseline.median

    @property
    def verdict(self) -> Literal["aim", "at least", "below", ""]:
        """The bound that is met; empty if there is none."""
        value = self.hearth.median if self.baseline is None else self.ratio
        if value is None or self.at_least is None:
            return ""
        sign = 1 if self.better == "higher" else -1
        if self.aim is not None and sign * value >= sign * self.aim:
            return "aim"
        return "at least" if sign * value >= sign * self.at_least else "below"

    def to_json(self) -> dict[str, Any]:
        """Returns the row's object for the results file."""
        return {
            "group": self.group,
            "what": self.what,
            "unit": self.unit,
            "better": self.better,
            "hearth": vars(self.hearth),
            "baseline": None if self.baseline is None else {"name": self.baseline_name, **vars(self.baseline)},
            "ratio": self.ratio,
            "bounds_on": "value" if self.baseline is None else "ratio",
            "at_least": self.at_least,
            "aim": self.aim,
            "verdict": self.verdict,
            "note": self.note,
        }


def merge(parts: Iterable[Samples]) -> Samples:
    """Joins the samples of several rounds."""
    merged: Samples = {}
    for part in parts:
        for name, samples in part.items():
            merged.setdefault(name, []).extend(samples)
    return merged


def jain(shares: Sequence[float]) -> float:
    """Returns Jain's fairness index (Jain, Chiu, Hawe 1984): 1 if all shares are equal, 1/n if one member has
    everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 0.0
