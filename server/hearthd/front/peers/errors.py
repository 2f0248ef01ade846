"""Refusals for a session whose daemon did not reach a group's coordinator.

They reveal only what the session needs; see `PeerConnector`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from hearth_proto.reasons import Reason, Refusal
from hearthd.front.addresses import Address

SETTING = "collectives.peers"


def not_allowed(addresses: Sequence[Address]) -> Refusal:
    """Returns the refusal if this daemon may connect to none of the ticket's addresses."""
    names = ", ".join(map(str, addresses))
    return Refusal(
        Reason.PERMISSION_DENIED,
        f"This daemon does not connect to {names} for a group over several daemons: {SETTING} does not allow it, or "
        "the name cannot be resolved here.",
        fix="If the coordinator is there, have the operator allow it in this daemon's configuration: "
        f"[collectives] {setting_line(addresses)}",
        details={"setting": SETTING, "requested": names},
    )


def not_reached(addresses: Sequence[Address], forbidden: Sequence[Address], time_limit: float | None) -> Refusal:
    """Returns the refusal if no address was reached.

    `time_limit`: the request's time limit in seconds, if it was too short to try each address for the usual time;
    otherwise None.
    """
    names = ", ".join(map(str, addresses))
    details: dict[str, object] = {"addresses": names}
    within = f" within {time_limit:g} s" if time_limit is not None else ""
    text = f"The group's coordinator could not be reached{within}. Tried {names}"
    if forbidden:
        details |= {"setting": SETTING, "not_allowed": ", ".join(map(str, forbidden))}
        text += f"; not {details['not_allowed']}: {SETTING} does not allow it or the name cannot be resolved here"
    return Refusal(
        Reason.COMMUNICATOR_FAILED if time_limit is None else Reason.COLLECTIVE_TIMEOUT,
        f"{text}.",
        fix="Set collectives.listen, and collectives.advertise where it differs, on the daemon that creates the group "
        "to an address that this node reaches; the log of this node's daemon has the result for each address.",
        details=details,
    )


def setting_line(addresses: Sequence[Address]) -> str:
    """Returns the line of the configuration that allows the addresses."""
    return f"peers = {json.dumps(['auto', *map(str, addresses)])}"
