"""The base class of all sections of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from hearthd.front.units import parse_bytes, parse_seconds

Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]


class Section(BaseModel):
    """Settings under one heading; those that it does not know are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
