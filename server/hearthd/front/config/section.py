"""The base class of sections of the configuration, and the types of durations, sizes, paths and addresses in them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from hearthd.front.addresses import parse_address

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12,
    "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


MAX_SECONDS = 24 * 86400
"""Longest duration. System calls take timeouts in milliseconds as 32-bit integers, which is almost 25 days."""
_MAX_BYTES = 1 << 60
"""Largest size. Sums of a few sizes fit in 63 bits."""


def parse_seconds(value: object, maximum: float = MAX_SECONDS) -> float:
    """Parses a duration such as "30s", "500ms", "500us", "2m" or "1h", and returns it in seconds.

    Plain numbers are seconds. Raises `ValueError` for durations beyond `maximum` seconds.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds: float = value
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        unit = (match[2].lower() or "s") if match else ""
        if match is None or unit not in _SECONDS:
            raise ValueError(f'{value!r} is not a duration; write e.g. "500ms", "30s" or "2m"')
        seconds = float(match[1]) * _SECONDS[unit]
    if not abs(seconds) <= maximum:  # or not a number
        raise ValueError(
            f'{value!r} is not a duration of at most {maximum / 3600:g}h; write e.g. "500ms", "30s" or "2m"'
        )
    return float(seconds)


def parse_bytes(value: object) -> int:
    """Parses a size such as "8GiB", "512 MiB" or "1GB", and returns it in bytes. Plain numbers are bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        size: float = value
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None or match[2].lower() not in _BYTES:
            raise ValueError(f'{value!r} is not a size; write e.g. "512MiB" or "8GiB"')
        size = float(match[1]) * _BYTES[match[2].lower()]
    if not abs(size) <= _MAX_BYTES:
        raise ValueError(f'{value!r} is not a size of at most 1 EiB; write e.g. "512MiB" or "8GiB"')
    return int(size)


def _check_path(value: str) -> str:
    if value and value != "auto" and not Path(value).is_absolute():
        raise ValueError(f"{value!r} is not an absolute path")
    return value


def _check_required_path(value: str) -> str:
    if value != "auto" and not Path(value).is_absolute():
        raise ValueError(f'{value!r} is neither "auto" nor an absolute path')
    return value


def _check_address(value: str) -> str:
    if value:
        parse_address(value)
    return value


Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
AbsolutePath = Annotated[str, AfterValidator(_check_path)]
"""An absolute path, "auto", or "" for none."""
RequiredPath = Annotated[str, AfterValidator(_check_required_path)]
"""An absolute path or "auto"."""
ListenAddress = Annotated[str, AfterValidator(_check_address)]
"""An address on which the daemon listens, or "" for none."""


class Section(BaseModel):
    """A group of settings. Unknown settings are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
