"""Figures as people write and read them: "64MiB", "12.3k", "2 min 5 s". JSON documents use base units."""

from __future__ import annotations

import re

NONE = "-"
"""Text of an unknown value."""
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_FACTORS = {
    "": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 1 << 40, "kb": 10**3, "mb": 10**6, "gb": 10**9,
    "tb": 10**12,
}  # fmt: skip
_WRITTEN = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
_UNITS = (("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB))


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


def size(value: float | None) -> str:
    """Formats a number of bytes, for example "12.3 GiB"."""
    return NONE if value is None else size_name(int(value))


def memory(used: float | None, total: float | None) -> str:
    """Formats used and total bytes in the unit of the total, for example "12.3/141 GiB"."""
    if not total:
        return size(used)
    name, unit = next(((name, unit) for name, unit in _UNITS if total >= unit), ("B", 1))
    used_text = NONE if used is None else _three_digits(used / unit)
    return f"{used_text}/{_three_digits(total / unit)} {name}"


def per_second(value: float | None) -> str:
    """Formats a count per second, for example "0", "12.3", "4.5k", "1.2M"."""
    if value is None:
        return NONE
    for name, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * factor:
            return f"{_three_digits(value / factor)}{name}"
    return _three_digits(value)


def bytes_per_second(value: float | None) -> str:
    """Formats a number of bytes per second, for example "1.2 GiB/s"."""
    return NONE if value is None else f"{size_name(int(value)).replace('bytes', 'B')}/s"


def share(value: float | None) -> str:
    """Formats a ratio as percentage, for example "43 %". Several devices together may exceed 100 %."""
    if value is None:
        return NONE
    return f"{value:.0%}".replace("%", " %") if not 0 < value < 0.01 else "<1 %"


def duration(seconds: float | None) -> str:
    """Formats a duration with two units, for example "3 d 4 h" or "2 min 5 s".

    Below 10 seconds, with one unit: "12 ms", "80 us".
    """
    if seconds is None:
        return NONE
    if seconds < 0:
        return "0 s"
    if seconds < 10:
        for name, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if seconds >= factor:
                return f"{_three_digits(seconds / factor)} {name}"
        return "0 s"
    parts: list[str] = []
    remaining = int(seconds)
    for name, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, remaining = divmod(remaining, length)
        if count or parts:
            parts.append(f"{count} {name}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 "))


def bar(ratio: float | None, cells: int) -> str:
    """Returns a bar such as "[####----]", with `cells` characters between the brackets."""
    filled = 0 if ratio is None else min(cells, max(0, round(ratio * cells)))
    return f"[{'#' * filled}{'-' * (cells - filled)}]"


def _three_digits(value: float) -> str:
    """Formats a number with at most three digits, or with all digits before the decimal point."""
    text = f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
