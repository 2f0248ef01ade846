"""Matches the ranks of collective operations, so that none is launched before every rank has presented the same.

Pure: what the devices say goes in, what they are to be told comes out, times are passed in. The bodies of COLLECTIVE
frames are JSON; bytes are base64 in them:

- device to front: `present`, `id`, `joined`, `join_failed`, `failed`
- front to device: `fail`, `create_id`, `join`, `go`, `abort`

An operation is named by (session, sorted devices, sequence). `communicators.py` takes over when all ranks are there.
"""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hearth_proto.reasons import Reason, Refusal

MAX_FAILURES = 1024
"""Failed operations that are remembered for ranks that present them later."""


class Key(NamedTuple):
    session: str
    devices: tuple[int, ...]
    sequence: int


class Send(NamedTuple):
    """One COLLECTIVE frame to one device."""

    device: int
    body: dict[str, Any]
    process: int = 0
    """The generation of the device's process that it is for."""


@dataclass
class Match:
    """An operation and the ranks that have presented it: device -> (channel, signature, process)."""

    key: Key
    deadline: float
    channels: dict[int, int] = field(default_factory=dict)
    signatures: dict[int, dict[str, Any]] = field(default_factory=dict)
    processes: dict[int, int] = field(default_factory=dict)
    """The generation of each rank's process: a device has several, for different sessions."""

    @property
    def missing(self) -> list[int]:
        return [device for device in self.key.devices if device not in self.channels]


def fail(key: Key, device: int, channel: int, refusal: Refusal, process: int = 0) -> Send:
    """Tells one rank that its operation will not run."""
    status = base64.b64encode(refusal.to_status().SerializeToString()).decode()
    return Send(
        device,
        {"op": "fail", "channel": channel, "devices": list(key.devices), "sequence": key.sequence, "status": status},
        process,
    )


def fail_all(match: Match, refusal: Refusal) -> list[Send]:
    """Tells every rank that has presented."""
    return [
        fail(match.key, device, channel, refusal, match.processes.get(device, 0))
        for device, channel in sorted(match.channels.items())
    ]


class Matcher:
    """The operations that wait for ranks."""

    def __init__(self, devices: Collection[int], timeout: float = 30.0) -> None:
        self._devices = frozenset(devices)
        self._timeout = timeout
        self._pending: dict[Key, Match] = {}
        self._failures: OrderedDict[Key, Refusal] = OrderedDict()

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def deadline(self) -> float | None:
        """When `expire` is due next."""
        return min((match.deadline for match in self._pending.values()), default=None)

    def present(
        self, session: str, device: int, body: Mapping[str, Any], now: float, process: int = 0
    ) -> tuple[list[Send], Match | None]:
        """One rank's part has come: what to tell whom, and the operation if it is complete and all ranks agree."""
        channel = int(body["channel"])
        devices = [int(ordinal) for ordinal in body["devices"]]
        key = Key(session, tuple(sorted(devices)), int(body["sequence"]))
        refusal = self._failures.get(key) or self._invalid(device, devices)
        if refusal is not None:
            return [fail(key, device, channel, refusal, process)], None
        seconds = float(body.get("timeout") or 0) or self._timeout
        match = self._pending.get(key)
        if match is None:
            match = self._pending[key] = Match(key, now + seconds)
        elif device in match.channels:
            refusal = Refusal(
                Reason.COLLECTIVE_MISMATCH,
                f"Device {device} presented operation {key.sequence} of group {list(key.devices)} twice.",
                fix="Count the group's operations from 1, each once on every device.",
                details={"device": device, "sequence": key.sequence},
            )
            return self._fail(match, refusal), None
        match.deadline = min(match.deadline, now + seconds)
        match.channels[device] = channel
        match.signatures[device] = dict(body["signature"])
        match.processes[device] = process
        if match.missing:
            return [], None
        refusal = mismatch(match)
        if refusal is not None:
            return self._fail(match, refusal), None
        del self._pending[key]
        return [], match

    def expire(self, now: float) -> list[Send]:
        """Fails what has waited too long."""
        sends: list[Send] = []
        for match in [match for match in self._pending.values() if match.deadline <= now]:
            sends += self._fail(match, mismatch(match) or _timed_out(match))
        return sends

    def device_lost(self, device: int, why: str, sessions: Collection[str] | None = None) -> list[Send]:
        """Fails what can no longer come together: the device's part is missing, or is gone with its process.
        `sessions`: those that the process served; None: all."""
        sends: list[Send] = []
        for match in [
            match
            for match in self._pending.values()
            if device in match.key.devices and (sessions is None or match.key.session in sessions)
        ]:
            match.channels.pop(device, None)
            match.signatures.pop(device, None)
            refusal = Refusal(
                Reason.COMMUNICATOR_FAILED,
                f"Device {device} of group {list(match.key.devices)} was lost before operation {match.key.sequence} "
                f"could start: {why}.",
                fix="Go on without it, or present the next operation when it serves again.",
                details={"device": device, "sequence": match.key.sequence},
            )
            sends += self._fail(match, refusal)
        return sends

    def session_closed(self, session: str) -> list[Send]:
        """Forgets a session."""
        sends: list[Send] = []
        for match in [match for match in self._pending.values() if match.key.session == session]:
            refusal = Refusal(Reason.SESSION_EXPIRED, "The session ended before all ranks had presented.")
            sends += self._fail(match, refusal)
        for key in [key for key in self._failures if key.session == session]:
            del self._failures[key]
        return sends

    def remember(self, key: Key, refusal: Refusal) -> None:
        """A rank that presents `key` from now on gets `refusal`."""
        self._failures[key] = refusal
        while len(self._failures) > MAX_FAILURES:
            self._failures.popitem(last=False)

    def _fail(self, match: Match, refusal: Refusal) -> list[Send]:
        del self._pending[match.key]
        self.remember(match.key, refusal)
        return fail_all(match, refusal)

    def _invalid(self, device: int, devices: list[int]) -> Refusal | None:
        known = ", ".join(map(str, sorted(self._devices)))
        strangers = sorted(set(devices) - self._devices)
        if strangers:
            return Refusal(
                Reason.DEVICE_NOT_FOUND,
                f"The group {devices} names devices that do not exist: {strangers}; there are: {known}.",
                fix="Use ordinals that NodeService.Describe lists.",
                details={"requested": devices, "allowed": known},
            )
        if len(set(devices)) != len(devices) or device not in devices:
            what = "names a device twice" if device in devices else f"does not contain device {device}, which presents"
            return Refusal(
                Reason.INVALID_ARGUMENT,
                f"The group {devices} {what}.",
                fix="List each device of the group once.",
                details={"requested": devices, "device": device},
            )
        return None


def mismatch(match: Match) -> Refusal | None:
    """Why the ranks that have presented cannot run together; names the odd ones, the field and both values."""
    for name in sorted({name for signature in match.signatures.values() for name in signature}):
        values = {device: signature.get(name) for device, signature in sorted(match.signatures.items())}
        counts = Counter(map(repr, values.values()))
        if len(counts) <= 1:
            continue
        # The most frequent value is the group's; between equals, that of the lowest device.
        order = list(dict.fromkeys(map(repr, values.values())))
        usual = max(order, key=lambda text: (counts[text], -order.index(text)))
        odd = [device for device, value in values.items() if repr(value) != usual]
        rest = [device for device, value in values.items() if repr(value) == usual]
        odd_values = ", ".join(f"device {device}: {values[device]!r}" for device in odd)
        return Refusal(
            Reason.COLLECTIVE_MISMATCH,
            f"Operation {match.key.sequence} of group {list(match.key.devices)} does not match in {name}: "
            f"{odd_values}; devices {', '.join(map(str, rest))}: {values[rest[0]]!r}.",
            fix=f"Present the same {name} on every device.",
            details={
                "field": name,
                "odd_rank": ", ".join(map(str, odd)),
                "requested": ", ".join(str(values[device]) for device in odd),
                "expected": values[rest[0]],
                "sequence": match.key.sequence,
            },
        )
    return None


def _timed_out(match: Match) -> Refusal:
    missing = ", ".join(map(str, match.missing))
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"Operation {match.key.sequence} of group {list(match.key.devices)} was not presented in time by devices "
        f"{missing}.",
        fix="Present every operation of the group on all of its devices, with the same sequence number.",
        details={
            "missing": missing,
            "presented": ", ".join(map(str, sorted(match.channels))),
            "sequence": match.key.sequence,
        },
    )
