"""Running kernels, which keep the device busy: for the log, and for refusals of loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import NAMED, StreamPool, listed

RETRY_S = 5.0
"""Seconds for which a refused client is refused again at once, unless the work that kept the device busy has ended.
Otherwise the commands behind the refused one would each wait as long, one after the other."""


class RunningKernels(NamedTuple):
    """Kernels in flight by owner: the session itself, its tenant, other tenants. Oldest first, each name once."""

    own: list[str]
    """Kernels of the session that asks for the device."""
    others: dict[str, list[str]]
    """Kernels of other sessions of the same tenant, by session id."""
    strangers: bool
    """True if another tenant has kernels in flight; their names and owner are not disclosed."""

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels that may be disclosed to the session."""
        return list(dict.fromkeys((*self.own, *(name for names in self.others.values() for name in names))))

    @property
    def text(self) -> str:
        """The kernels and their owners as text for a refusal."""
        parts = [f"{_named(self.own)} of this session"] if self.own else []
        parts += [f"{_named(names)} of session {session}" for session, names in list(self.others.items())[:NAMED]]
        if len(self.others) > NAMED:
            parts.append("more of other sessions")
        if self.strangers:
            parts.append("work of another tenant's session")
        return " and ".join(parts) or "work that has no kernel's name (a graph, a collective or a copy)"


def running(tracks: StreamPool, asking: DeviceSession, tenant_of: Callable[[str], str | None]) -> RunningKernels:
    """Returns the kernels that are running, by owner as seen by the session `asking`.

    `tenant_of` returns the tenant of a session by its id, or None if unknown.
    """
    own: list[str] = []
    others: dict[str, list[str]] = {}
    strangers = False
    for session in tracks.running_sessions():
        names = list(dict.fromkeys(tracks.in_flight(session)))
        if session == asking.id:
            own = names
        elif tenant_of(session) == asking.tenant:
            others[session] = names
        else:
            strangers = True
    return RunningKernels(own, others, strangers)


def device_busy(what: str, waited: float, limit: float, found: RunningKernels) -> Refusal:
    """Returns the refusal for a client that waited for an idle device for the whole time limit.

    `what` names the load.
    """
    fixes = []
    if found.own:
        fixes.append("let kernels of this session end (synchronize) before it loads")
    if found.others:
        fixes.append(
            f"end it (hearth sessions end {next(iter(found.others))}: takes effect after the other sessions of its "
            "process have closed; hearth restart-device: takes effect immediately)"
        )
    if found.strangers:
        fixes.append('use a process for each tenant (devices.isolation = "tenant")')
    fixes.append(
        'use a dedicated session (isolation="dedicated"), limit kernels (launch.timeout), or raise '
        "launch.load_timeout; then try again"
    )
    return Refusal(
        Reason.QUEUE_FULL,
        f"{what} could not be done within {waited:.3g} s: no code is loaded while a kernel runs, and this has not "
        f"ended: {found.text}",
        fix=", ".join(fixes),
        details={
            "waited_s": f"{waited:.3f}",
            "load_timeout_s": f"{limit:g}",
            "kernels": listed(found.kernels),
            "sessions": ", ".join(list(found.others)[:NAMED]),
        },
        retry_after_s=RETRY_S,
    )


def _named(names: Sequence[str]) -> str:
    return f"kernel{'s' if len(names) > 1 else ''} {listed(names)}"
