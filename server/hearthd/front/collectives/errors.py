"""Refusals for ranks whose collective operations do not run, or do not end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.collectives.match import Match, MatchKey, RankLocation, group_name, place_name
from hearthd.front.collectives.signature import Mismatch

_AGAIN = "Present it again, with the next sequence number on every rank; a new communicator is created."


def with_recorder(refusal: Refusal, lines: Sequence[str]) -> Refusal:
    """Returns the refusal with the lines of the flight recorder added."""
    if not lines:
        return refusal
    details = {**refusal.details, "recorder": "\n".join(lines)}
    return Refusal(
        refusal.reason, refusal.message, fix=refusal.fix, details=details, retry_after_s=refusal.retry_after_s
    )


def impossible_reason(devices: Sequence[int], device: int, known: Collection[int]) -> Refusal | None:
    """Returns the reason why a device cannot present for a group of these devices; None if it can."""
    found = set(devices)
    if len(found) == len(devices) and device in found and found.issubset(known):
        return None
    strangers = sorted(found.difference(known))
    if strangers:
        names = ", ".join(map(str, sorted(known)))
        return Refusal(
            Reason.DEVICE_NOT_FOUND,
            f"The group {_some(devices)} names devices that do not exist: {_some(strangers)}; this node has: {names}.",
            fix="Use ordinals that NodeService.Describe lists.",
            details={"requested": _some(devices), "allowed": names},
        )
    what = (
        "names a device twice"
        if device in found
        else f"does not contain device {device}, which presented the operation"
    )
    return Refusal(
        Reason.INVALID_ARGUMENT,
        f"The group {_some(devices)} {what}.",
        fix="List each device of the group once.",
        details={"requested": _some(devices), "device": device},
    )


def unknown_group(group: str) -> Refusal:
    """Returns the refusal of a group over daemons in which the session does not take part."""
    return Refusal(
        Reason.INVALID_HANDLE,
        f"There is no group {group[:64]} of this session.",
        fix="Use a group that CreateGroup or JoinGroup made on this session and that has not been left.",
        details={"group": group[:64]},
    )


def presented_twice(key: MatchKey, rank: int) -> Refusal:
    """Returns the refusal of an operation that one rank presents a second time."""
    return Refusal(
        Reason.COLLECTIVE_MISMATCH,
        f"{_capital(key.name(rank))} presented operation {key.sequence} of {group_name(key.group, key.members)} twice.",
        fix="Number the group's operations from 1, and present each number once on every rank.",
        details={"odd_rank": key.numbers([rank]), "field": "sequence", "sequence": key.sequence},
    )


def mismatch(key: MatchKey, found: Mismatch) -> Refusal:
    """Returns the refusal of operations that do not match.

    Its details name the difference: `odd_rank`, `requested` (values of those ranks) and `expected` (value of the other
    ranks); see `signature`.
    """
    which = f", operation {found.position} of the batch" if found.position else ""
    details: dict[str, object] = {
        "field": found.field,
        "odd_rank": key.numbers(found.odd),
        "sequence": key.sequence,
    }
    if found.position:
        details["position"] = found.position
    if found.pair is not None:
        sender, receiver, sent, taken = found.pair
        return Refusal(
            Reason.COLLECTIVE_MISMATCH,
            f"{key.title} does not match in {found.field}{which}: what {key.name(sender)} sends, {sent!r}, is not what "
            f"{key.name(receiver)} receives from it, {taken!r}.",
            fix="Receive each send on its peer, in the same order, with the same count and dtype.",
            details={**details, "requested": sent, "expected": taken},
        )
    odd_values = ", ".join(f"{key.name(rank)}: {found.values[rank]!r}" for rank in found.odd)
    usual = found.majority
    if not usual:
        return Refusal(
            Reason.COLLECTIVE_MISMATCH,
            f"{key.title} does not match in {found.field}{which}: {odd_values}; the ranks are 0 to "
            f"{len(key.members) - 1}.",
            fix="Name a rank of the group.",
            details={**details, "requested": found.values[found.odd[0]], "expected": f"0 to {len(key.members) - 1}"},
        )
    expected = found.values[usual[0]]
    return Refusal(
        Reason.COLLECTIVE_MISMATCH,
        f"{key.title} does not match in {found.field}{which}: {odd_values}; {key.names(usual)}: {expected!r}.",
        fix=f"Present the same {found.field} on every rank.",
        details={
            **details,
            "requested": ", ".join(str(found.values[rank]) for rank in found.odd),
            "expected": expected,
        },
    )


def not_presented(match: Match) -> Refusal:
    """Returns the refusal of an operation that some ranks have not presented before its deadline."""
    key = match.key
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"{key.title} was not presented in time by {key.names(match.missing)}.",
        fix="Present every operation of the group on all of its ranks, with the same sequence number.",
        details={
            "missing": key.numbers(match.missing),
            "presented": key.numbers(match.parts),
            "sequence": key.sequence,
        },
    )


def held(key: MatchKey, ahead: Iterable[MatchKey]) -> Refusal:
    """Returns the refusal of a complete operation that has waited too long for the operations in `ahead`."""
    first = min(ahead)
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"{key.title} could not start in time: it is queued behind {_small(first.title)} on one of its ranks, "
        f"which has "
        "not started.",
        fix="Find out what delays the other operation, or present them on separate streams and arrays.",
        details={"sequence": key.sequence, "behind": first.sequence},
    )


def crossed(key: MatchKey, circle: Sequence[MatchKey]) -> Refusal:
    """Returns the refusal of one of the operations that wait for each other (see `CollectiveOrder.find_cycle`)."""
    others = ", ".join(_small(other.title) for other in circle if other != key)
    return Refusal(
        Reason.COLLECTIVE_MISMATCH,
        f"{key.title} cannot start: one rank has queued it behind {others}, and another rank in the opposite order.",
        fix="Present operations that share a stream or an array in the same order on every rank.",
        details={"sequence": key.sequence, "field": "order"},
    )


def withdrawn(key: MatchKey, rank: int, why: Refusal) -> Refusal:
    """Returns the refusal of an operation in which `rank` does not take part, for the reason `why`."""
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"{key.title} cannot start: {key.name(rank)} cannot take part in it: {why.message}",
        fix="Correct that, and present the operation under the next sequence number on every rank.",
        details={"failed": key.numbers([rank]), "sequence": key.sequence, "cause": str(why.reason)},
    )


def not_joined(key: MatchKey, late: Iterable[int]) -> Refusal:
    """Returns the refusal of an operation whose communicator the ranks `late` have not joined in time."""
    late = list(late)
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"The communicator of {group_name(key.group, key.members)} was not created in time for operation "
        f"{key.sequence}: "
        f"{key.names(late)} did not join.",
        fix="Try again; a longer timeout leaves more time for the first operation of a group.",
        details={"missing": key.numbers(late), "sequence": key.sequence},
    )


def lost_before(key: MatchKey, where: RankLocation | int, why: str) -> Refusal:
    """Returns the refusal of an operation that lost a process or a node before all ranks had presented it."""
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"{_capital(place_name(where))} of {group_name(key.group, key.members)} was lost before operation "
        f"{key.sequence} could start: {why}.",
        fix="Leave the group and rebuild it from the nodes that are available."
        if isinstance(where, int)
        else "Continue without it, or present the next operation when it serves again.",
        details={"lost": place_name(where), "sequence": key.sequence},
    )


def not_finished(key: MatchKey, missing: Iterable[int], sequence: int | None) -> Refusal:
    """Returns the refusal of an operation that ranks have not finished.

    `sequence`: its number, if all recipients may know it.
    """
    missing = list(missing)
    which = f"Operation {sequence}" if sequence is not None else "An operation"
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"{which} of {group_name(key.group, key.members)} was launched but not finished in time by "
        f"{key.names(missing)}.",
        fix="Find out what delays these ranks, or use a longer timeout. " + _AGAIN,
        details={"missing": key.numbers(missing), **({} if sequence is None else {"sequence": sequence})},
    )


def failed(key: MatchKey, why: str, rank: int | None = None) -> Refusal:
    """Returns the refusal after a communicator failed.

    `rank`: the rank at which it failed, if there is one such rank.
    """
    at = {} if rank is None else {"failed": key.numbers([rank])}
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"The communicator of {group_name(key.group, key.members)} failed: {why}.",
        fix=_AGAIN,
        details={"devices": key.numbers(range(len(key.members))), **at},
    )


def _some(devices: Sequence[int]) -> str:
    """Formats a list of devices, shortened to 64 entries."""
    return (
        str(list(devices)) if len(devices) <= 64 else f"{str(list(devices[:64]))[:-1]}, and {len(devices) - 64} more]"
    )


def _small(text: str) -> str:
    return text[:1].lower() + text[1:]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
