"""Running kernels, which keep the device busy: for the log, and for refusals of loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.session.session import DeviceSession
from hearthd.device.streams.stream_pool import NAMED, StreamPool, listed

RETRY_S = 5.0
"""Seconds after a refusal during which further attempts are refused immediately, unless the work that kept the device
busy has ended. Without this limit, each of the commands after a refused one would wait for the whole time limit."""


class RunningKernels(NamedTuple):
    """Kernels in flight by owner: the session itself, its tenant, other tenants. Oldest first, each name once."""

    of_session: list[str]
    """Kernels of the session that waits for an idle device."""
    of_tenant: dict[str, list[str]]
    """Kernels of other sessions of the same tenant, by session id."""
    has_foreign: bool
    """True if another tenant has kernels in flight; their names and owner are not disclosed."""

    @property
    def kernels(self) -> list[str]:
        """Names of the kernels that may be disclosed to the session."""
        return list(dict.fromkeys((*self.of_session, *(name for names in self.of_tenant.values() for name in names))))

    @property
    def text(self) -> str:
        """The kernels and their owners as text for a refusal."""
        owners = [f"{_named(self.of_session)} of this session"] if self.of_session else []
        owners += [f"{_named(names)} of session {session}" for session, names in list(self.of_tenant.items())[:NAMED]]
        if len(self.of_tenant) > NAMED:
            owners.append("more of other sessions")
        if self.has_foreign:
            owners.append("work of another tenant's session")
        return " and ".join(owners) or "work that has no kernel's name (a graph, a collective or a copy)"


def running(
    tracks: StreamPool, asking_session: DeviceSession, tenant_of: Callable[[str], str | None]
) -> RunningKernels:
    """Returns the kernels that are running, by owner as seen by the session `asking_session`.

    `tenant_of` returns the tenant of a session by its id, or None if unknown.
    """
    of_session: list[str] = []
    of_tenant: dict[str, list[str]] = {}
    has_foreign = False
    for session in tracks.running_sessions():
        names = list(dict.fromkeys(tracks.in_flight(session)))
        if session == asking_session.id:
            of_session = names
        elif tenant_of(session) == asking_session.tenant:
            of_tenant[session] = names
        else:
            has_foreign = True
    return RunningKernels(of_session, of_tenant, has_foreign)


def device_busy(load: str, waited: float, limit: float, kernels: RunningKernels) -> Refusal:
    """Returns the refusal for a client that waited for an idle device for the whole time limit.

    `load` describes the load, for example "the load of module 7".
    """
    fixes = []
    if kernels.of_session:
        fixes.append("let kernels of this session end (synchronize) before it loads")
    if kernels.of_tenant:
        fixes.append(
            f"end it (hearth sessions end {next(iter(kernels.of_tenant))}: takes effect after the other sessions of "
            "its process have closed; hearth restart-device: takes effect immediately)"
        )
    if kernels.has_foreign:
        fixes.append('use a process for each tenant (devices.isolation = "tenant")')
    fixes.append(
        'use a dedicated session (isolation="dedicated"), limit kernels (launch.timeout), or raise '
        "launch.load_timeout; then try again"
    )
    return Refusal(
        Reason.QUEUE_FULL,
        f"{load} could not be done within {waited:.3g} s: no code is loaded while a kernel runs, and this has not "
        f"ended: {kernels.text}",
        fix=", ".join(fixes),
        details={
            "waited_s": f"{waited:.3f}",
            "load_timeout_s": f"{limit:g}",
            "kernels": listed(kernels.kernels),
            "sessions": ", ".join(list(kernels.of_tenant)[:NAMED]),
        },
        retry_after_s=RETRY_S,
    )


def _named(names: Sequence[str]) -> str:
    return f"kernel{'s' if len(names) > 1 else ''} {listed(names)}"
