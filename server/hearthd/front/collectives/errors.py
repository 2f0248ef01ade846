"""Refusals for ranks whose collective operations do not run, or do not end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from hearth_proto.collectives import operation_name
from hearth_proto.reasons import Reason, Refusal
from hearthd.front.collectives.match import Match, MatchKey, RankLocation, group_name, location_name
from hearthd.front.collectives.signature import Mismatch

_PRESENT_AGAIN = "Present it again, with the next sequence number on every rank; a new communicator is created."


def with_recorder(refusal: Refusal, lines: Sequence[str]) -> Refusal:
    """Returns the refusal with the lines of the flight recorder added."""
    if not lines:
        return refusal
    details = {**refusal.details, "recorder": "\n".join(lines)}
    return Refusal(
        refusal.reason, refusal.message, fix=refusal.fix, details=details, retry_after_s=refusal.retry_after_s
    )


def invalid_group(devices: Sequence[int], device: int, existing: Collection[int]) -> Refusal | None:
    """Returns the refusal of a group for which `device` cannot present; None: the group is valid.

    `devices` are the ordinals in the group; `existing` are those of this node.
    """
    distinct = set(devices)
    if len(distinct) == len(devices) and device in distinct and distinct.issubset(existing):
        return None
    unknown = sorted(distinct.difference(existing))
    if unknown:
        names = ", ".join(map(str, sorted(existing)))
        return Refusal(
            Reason.DEVICE_NOT_FOUND,
            f"The group {_format_devices(devices)} names devices that do not exist: {_format_devices(unknown)}; "
            f"this node has: {names}.",
            fix="Use ordinals that NodeService.Describe lists.",
            details={"requested": _format_devices(devices), "allowed": names},
        )
    problem = (
        "names a device twice"
        if device in distinct
        else f"does not contain device {device}, which presented the operation"
    )
    return Refusal(
        Reason.INVALID_ARGUMENT,
        f"The group {_format_devices(devices)} {problem}.",
        fix="List each device of the group once.",
        details={"requested": _format_devices(devices), "device": device},
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
        f"{key.rank_name(rank).capitalize()} presented {key.name} twice.",
        fix="Number the group's operations from 1, and present each number once on every rank.",
        details={"odd_rank": key.rank_numbers([rank]), "field": "sequence", "sequence": key.sequence},
    )


def mismatch(key: MatchKey, difference: Mismatch) -> Refusal:
    """Returns the refusal of operations that do not match.

    Its details name the difference: `odd_rank`, `requested` (values of those ranks) and `expected` (value of the other
    ranks); see `signature`.
    """
    in_batch = f", operation {difference.position} of the batch" if difference.position else ""
    details: dict[str, object] = {
        "field": difference.field,
        "odd_rank": key.rank_numbers(difference.odd_ranks),
        "sequence": key.sequence,
    }
    if difference.position:
        details["position"] = difference.position
    values, odd_ranks, majority = difference.values, difference.odd_ranks, difference.majority
    odd_values = ", ".join(f"{key.rank_name(rank)}: {values[rank]!r}" for rank in odd_ranks)
    requested: object
    expected: object
    if difference.pair is not None:
        sender, receiver, requested, expected = difference.pair
        problem = (
            f"{key.rank_name(sender)} sends {requested!r}, but {key.rank_name(receiver)} receives {expected!r} from it"
        )
        fix = "Receive each send on its peer, in the same order, with the same count and dtype."
    elif not majority:
        requested, expected = values[odd_ranks[0]], f"0 to {len(key.members) - 1}"
        problem, fix = f"{odd_values}; the ranks are {expected}", "Name a rank of the group."
    else:
        requested, expected = ", ".join(str(values[rank]) for rank in odd_ranks), values[majority[0]]
        problem = f"{odd_values}; {key.rank_names(majority)}: {expected!r}"
        fix = f"Present the same {difference.field} on every rank."
    return Refusal(
        Reason.COLLECTIVE_MISMATCH,
        f"{key.title} does not match in {difference.field}{in_batch}: {problem}.",
        fix=fix,
        details={**details, "requested": requested, "expected": expected},
    )


def not_presented(match: Match) -> Refusal:
    """Returns the refusal of an operation that some ranks have not presented before its deadline."""
    key = match.key
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"{key.title} was not presented in time by {key.rank_names(match.missing)}.",
        fix="Present every operation of the group on all of its ranks, with the same sequence number.",
        details={
            "missing": key.rank_numbers(match.missing),
            "presented": key.rank_numbers(match.presentations),
            "sequence": key.sequence,
        },
    )


def not_released(key: MatchKey, blockers: Iterable[MatchKey]) -> Refusal:
    """Returns the refusal of a complete operation that has waited too long for the operations in `blockers`."""
    first = min(blockers)
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"{key.title} could not start in time: it is queued behind {first.name} on one of its ranks, "
        "which has not started.",
        fix="Find out what delays the other operation, or present them on separate streams and arrays.",
        details={"sequence": key.sequence, "behind": first.sequence},
    )


def in_cycle(key: MatchKey, cycle: Sequence[MatchKey]) -> Refusal:
    """Returns the refusal of an operation of a cycle, whose operations wait for each other.

    `cycle`: the result of `CollectiveOrder.find_cycle`.
    """
    others = ", ".join(other.name for other in cycle if other != key)
    return Refusal(
        Reason.COLLECTIVE_MISMATCH,
        f"{key.title} cannot start: one rank has queued it behind {others}, and another rank in the opposite order.",
        fix="Present operations that share a stream or an array in the same order on every rank.",
        details={"sequence": key.sequence, "field": "order"},
    )


def withdrawn(key: MatchKey, rank: int, cause: Refusal) -> Refusal:
    """Returns the refusal of an operation in which `rank` does not take part because of `cause`."""
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"{key.title} cannot start: {key.rank_name(rank)} cannot take part in it: {cause.message}",
        fix="Correct that, and present the operation under the next sequence number on every rank.",
        details={"failed": key.rank_numbers([rank]), "sequence": key.sequence, "cause": str(cause.reason)},
    )


def not_joined(key: MatchKey, missing: Iterable[int]) -> Refusal:
    """Returns the refusal of an operation whose communicator the ranks `missing` have not joined in time."""
    missing = list(missing)
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"The communicator of {group_name(key.group, key.members)} was not created in time for "
        f"{operation_name(key.sequence)}: {key.rank_names(missing)} did not join.",
        fix="Try again; a longer timeout leaves more time for the first operation of a group.",
        details={"missing": key.rank_numbers(missing), "sequence": key.sequence},
    )


def lost_before(key: MatchKey, lost: RankLocation | int, cause: str) -> Refusal:
    """Returns the refusal of an operation that lost a process or a node before all ranks had presented it."""
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"{location_name(lost).capitalize()} of {group_name(key.group, key.members)} was lost before "
        f"{operation_name(key.sequence)} could start: {cause}.",
        fix="Leave the group and rebuild it from the nodes that are available."
        if isinstance(lost, int)
        else "Continue without it, or present the next operation when it serves again.",
        details={"lost": location_name(lost), "sequence": key.sequence},
    )


def not_finished(key: MatchKey, missing: Iterable[int], sequence: int | None) -> Refusal:
    """Returns the refusal of an operation that ranks have not finished.

    `sequence`: its number, if all recipients may know it.
    """
    missing = list(missing)
    operation = operation_name(sequence).capitalize() if sequence is not None else "An operation"
    return Refusal(
        Reason.COLLECTIVE_TIMEOUT,
        f"{operation} of {group_name(key.group, key.members)} was launched but not finished in time by "
        f"{key.rank_names(missing)}.",
        fix="Find out what delays these ranks, or use a longer timeout. " + _PRESENT_AGAIN,
        details={"missing": key.rank_numbers(missing), **({} if sequence is None else {"sequence": sequence})},
    )


def failed(key: MatchKey, cause: str, rank: int | None = None) -> Refusal:
    """Returns the refusal after a communicator failed.

    `rank`: the rank at which it failed, if there is one such rank.
    """
    failed_rank = {} if rank is None else {"failed": key.rank_numbers([rank])}
    return Refusal(
        Reason.COMMUNICATOR_FAILED,
        f"The communicator of {group_name(key.group, key.members)} failed: {cause}.",
        fix=_PRESENT_AGAIN,
        details={"devices": key.rank_numbers(range(len(key.members))), **failed_rank},
    )


def _format_devices(devices: Sequence[int]) -> str:
    """Formats a list of devices, shortened to 64 entries."""
    return (
        str(list(devices)) if len(devices) <= 64 else f"{str(list(devices[:64]))[:-1]}, and {len(devices) - 64} more]"
    )
