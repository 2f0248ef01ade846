"""Checks of launch attributes against a device, before the driver sees them.

They apply in every mode of a launch: the driver ignores some attributes that a device does not have, and refuses others
with a status that names no attribute.
"""

from __future__ import annotations

from hearth_proto.launches import ACCESS_PROPERTIES, MEM_SYNC_DOMAINS, AccessWindow, Attributes
from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.launch_limits import LaunchLimits

PROGRAMMATIC_LAUNCH = "programmatic_launch"
"""Feature of a device with programmatic dependent launch."""
MEMORY_SYNC_DOMAINS = "memory_sync_domains"
"""Feature of a device with memory-sync domains."""
ACCESS_POLICY_WINDOW = "access_policy_window"
"""Feature of a device with access-policy windows."""


def features(major: int) -> list[str]:
    """Returns the features of a GPU of compute capability `major`.x that launch attributes need."""
    present = [PROGRAMMATIC_LAUNCH, MEMORY_SYNC_DOMAINS] if major >= 9 else []
    return [*present, ACCESS_POLICY_WINDOW] if major >= 8 else present


def check(limits: LaunchLimits, kernel: str, attributes: Attributes) -> None:
    """Raises Refusal(UNSUPPORTED) for attributes that the device does not have, Refusal(LAUNCH_INVALID) for values.

    The refusal lists all faults of its kind. The range of a window is checked where its buffer is known.
    """
    missing = _missing(limits, attributes)
    if missing:
        raise Refusal(
            Reason.UNSUPPORTED,
            f"launch of {kernel}: " + "; ".join(missing.values()),
            fix="leave these attributes out, or use a device whose properties.features names "
            + " and ".join(sorted(missing)),
            details={"kernel": kernel, "feature": ", ".join(sorted(missing))},
        )
    faults = []
    if attributes.mem_sync_domain >= len(MEM_SYNC_DOMAINS):
        faults.append(f"memory-sync domain {attributes.mem_sync_domain} is unknown; 0 is default, 1 is remote")
    if attributes.window is not None:
        faults += _window_faults(limits, attributes.window)
    if faults:
        raise Refusal(
            Reason.LAUNCH_INVALID,
            f"launch of {kernel}: " + "; ".join(faults),
            fix="compare the window with the device's properties.access_policy_max_window_size, and pass a smaller "
            "range of the array"
            if attributes.window is not None and attributes.window.size > limits.max_access_window
            else "see LaunchAttributes in hearth_proto/v1/commands.proto",
            details={"kernel": kernel, "failures": len(faults), "max_window": limits.max_access_window},
        )


def _missing(limits: LaunchLimits, attributes: Attributes) -> dict[str, str]:
    """Returns the features that the device lacks, each with a sentence."""
    needed = {
        PROGRAMMATIC_LAUNCH: (attributes.programmatic, "programmatic dependent launch", "9.0"),
        MEMORY_SYNC_DOMAINS: (attributes.mem_sync_domain != 0, "memory-sync domains", "9.0"),
        ACCESS_POLICY_WINDOW: (attributes.window is not None, "access-policy windows", "8.0"),
    }
    return {
        feature: f"the device has no {name}, which need compute capability {capability}"
        for feature, (used, name, capability) in needed.items()
        if used and feature not in limits.features
    }


def _window_faults(limits: LaunchLimits, window: AccessWindow) -> list[str]:
    """Returns the faults of the window, one sentence each."""
    faults = []
    if not 0 < window.size <= limits.max_access_window:
        faults.append(
            f"the access-policy window has {window.size} bytes; it must have from 1 to {limits.max_access_window}"
        )
    if not 0.0 <= window.hit_ratio <= 1.0:  # also false for NaN
        faults.append(f"the hit ratio of the access-policy window is {window.hit_ratio}; it must be from 0 to 1")
    if window.hit >= len(ACCESS_PROPERTIES):
        faults.append(f"the access property {window.hit} is unknown; it must be one of {_named(ACCESS_PROPERTIES)}")
    if window.miss >= ACCESS_PROPERTIES.index("persisting"):
        faults.append(
            f"the access property {window.miss} of misses is unknown or persisting; it must be one of "
            f"{_named(ACCESS_PROPERTIES[:2])}"
        )
    return faults


def _named(names: tuple[str, ...]) -> str:
    return ", ".join(f"{value} ({name})" for value, name in enumerate(names))
