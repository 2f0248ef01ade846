"""The section `[admission]` of the configuration."""

from __future__ import annotations

from pydantic import Field

from hearthd.front.config.section import Bytes, Seconds, Section


class AdmissionSettings(Section):
    """Bounds on requests, before and after the credential of a call is accepted."""

    request_timeout: Seconds = Field(default=10.0, gt=0, le=600)  # until a call's first message is there
    request_rate: Bytes = Field(default=64 << 10, ge=1 << 10)  # bytes a second: a long message has that much longer
    max_request_bytes: Bytes = Field(default=1 << 20, ge=64 << 10, le=31 << 20)  # of calls that carry no bulk data
    max_request_fields: int = Field(default=8192, ge=256, le=1 << 20)  # in one message, nested ones included
    max_unauthenticated_bytes: Bytes = Field(default=16 << 20, ge=1 << 20)  # held for callers without a credential
