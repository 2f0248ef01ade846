"""The `[audit]` section: the path of the audit log, the key that signs it, and the location of its anchors."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator

from hearthd.front.config.section import AbsolutePath, Seconds, Section

LOG, SYSLOG = "log", "syslog"
"""Locations of anchors that are not files: the daemon's log, and syslog (the journal, on hosts with systemd)."""


def state_folder() -> Path:
    """Returns the state directory: systemd's StateDirectory if it is set, otherwise that of the user.

    For root it is the StateDirectory of the systemd service, so that root can verify the service's log without further
    options.
    """
    systemd = os.environ.get("STATE_DIRECTORY", "").split(":")[0]
    if systemd:
        return Path(systemd)
    user = os.environ.get("XDG_STATE_HOME")
    if not user and os.geteuid() == 0:
        return Path("/var/lib/hearth")
    return Path(user or Path("~/.local/state").expanduser()) / "hearth"


class AuditSettings(Section):
    """The audit log: JSON lines, chained by hashes, signed and anchored (`hearthd audit verify`)."""

    path: AbsolutePath = ""
    """File of the log; "": no audit log."""
    key: AbsolutePath = "auto"
    """File of the keys that sign the log; "auto": `audit.key` in the state directory; "": unsigned."""
    anchor: str = "auto"
    """Location of the signed head of the log, which makes a truncation of the log detectable: another file, "log" (the
    daemon's log), "syslog", or "" for none; "auto": a file in the state directory.
    """
    anchor_interval: Seconds = Field(default=10.0, gt=0, le=86400)
    """Maximum time between two anchors while lines are written."""

    @field_validator("anchor")
    @classmethod
    def _check_anchor(cls, value: str) -> str:
        if value not in ("", "auto", LOG, SYSLOG) and not Path(value).is_absolute():
            raise ValueError(f'{value!r} is neither an absolute path nor "auto", "{LOG}" or "{SYSLOG}"')
        return value

    @model_validator(mode="after")
    def _check_directories(self) -> AuditSettings:
        for name in ("key", "anchor"):
            value = getattr(self, name)
            if self.path and value.startswith("/") and Path(value).parent == Path(self.path).parent:
                raise ValueError(
                    f"{name} = {value!r} is in the log's own directory: a user who can rewrite the log there can "
                    f"rewrite this file as well; name a file in another directory"
                )
        return self

    @property
    def key_path(self) -> str:
        """The file of keys. Empty: there is none."""
        return str(state_folder() / "audit.key") if self.key == "auto" else self.key

    @property
    def anchor_path(self) -> str | Literal["", "log", "syslog"]:
        """The file of anchors, or `log` or `syslog`. Empty: there is no anchor. Each log has a separate file."""
        if self.anchor != "auto":
            return self.anchor
        return str(state_folder() / f"audit-{hashlib.sha256(self.path.encode()).hexdigest()[:8]}.anchor")
