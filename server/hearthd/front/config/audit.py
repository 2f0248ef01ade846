"""`[audit]`: where the audit log is, which key signs it, where its head is anchored."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from hearthd.front.config.section import Seconds, Section

LOG, SYSLOG = "log", "syslog"
"""Anchors that are no file: the daemon's own log, and syslog (on hosts with systemd the journal)."""


def state_folder() -> Path:
    """The directory for what has to outlive the daemon: systemd's StateDirectory, else that of the user; of root the
    one that systemd gives to a service, so that root verifies a service's log without more ado."""
    systemd = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if systemd:
        return Path(systemd)
    user = os.environ.get("XDG_STATE_HOME")
    if not user and os.geteuid() == 0:
        return Path("/var/lib/hearth")
    return Path(user or Path("~/.local/state").expanduser()) / "hearth"


class AuditSettings(Section):
    """The audit log: one JSON object a line, chained by hashes, signed and anchored (`hearthd audit verify`)."""

    path: str = ""  # "": none
    key: str = "auto"  # of the keys that sign it; "auto": in the state directory; "": unsigned
    anchor: str = "auto"  # "auto": a file in the state directory; another file, "log", "syslog", or "": none
    anchor_interval: Seconds = Field(default=10.0, gt=0, le=86400)  # the longest time without an anchor

    @field_validator("path", "key")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if value and value != "auto" and not Path(value).is_absolute():
            raise ValueError(f"{value!r} is no absolute path")
        return value

    @field_validator("anchor")
    @classmethod
    def _place(cls, value: str) -> str:
        if value not in ("", "auto", LOG, SYSLOG) and not Path(value).is_absolute():
            raise ValueError(f'{value!r} is neither an absolute path nor "auto", "{LOG}" or "{SYSLOG}"')
        return value

    @model_validator(mode="after")
    def _apart(self) -> AuditSettings:
        for name in ("key", "anchor"):
            value = getattr(self, name)
            if self.path and value.startswith("/") and Path(value).parent == Path(self.path).parent:
                raise ValueError(
                    f"{name} = {value!r} is in the log's own directory: who can rewrite the log there can have "
                    f"that as well; name a file in another directory"
                )
        return self

    @property
    def key_path(self) -> str:
        """The file of keys; empty: none."""
        return str(state_folder() / "audit.key") if self.key == "auto" else self.key

    @property
    def anchor_path(self) -> str | Literal["", "log", "syslog"]:
        """The file of anchors, or the kind of what is no file; empty: none. One file for each log."""
        if self.anchor != "auto":
            return self.anchor
        return str(state_folder() / f"audit-{hashlib.sha256(self.path.encode()).hexdigest()[:8]}.anchor")
