"""Sizes as people write them: "64MiB", "1.5 GiB", "1GB", "4096"."""

from __future__ import annotations

import re

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_FACTORS = {
    "": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "tb": 10**12,
}  # fmt: skip
_WRITTEN = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Returns the size in bytes. Raises `ValueError`."""
    match = _WRITTEN.fullmatch(text.strip())
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f'{text!r} is not a size; use a form like "64MiB" or "1GiB", or a number of bytes')
    return int(float(match[1]) * factor)


def size_name(size: int) -> str:
    """Formats a size in the largest unit of which it is at least 1, with at most one decimal."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size >= factor:
            return f"{size / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size} bytes"
