"""Budget: free memory of a device, for refusals, and for commands that plan before they allocate.

All sizes are in bytes. Unused memory in the pool counts as free, because it serves the next allocation.
"""

from __future__ import annotations

from hearth_proto.reasons import Reason, Refusal
from hearthd.device.backend.resources import MemoryInfo

GRANULARITY = 512
"""Every allocation is rounded up to a multiple of this size, in bytes, by CuPy's pool, CUDA's pool and the CPU
backend."""

SHARE = 9
OF = 10
"""`SHARE / OF`, nine tenths, of the device and of its free memory may be planned with; drivers, contexts and
fragmentation need the rest. The figure is vyre's (`transient_dispatch_budget_uses_conservative_live_vram_fraction`)."""


def rounded(size: int) -> int:
    """Returns the number of bytes that an allocation of `size` bytes takes from the pool."""
    return -(-size // GRANULARITY) * GRANULARITY


def ceiling(info: MemoryInfo, limit: int) -> int:
    """Returns the largest number of bytes that this process may ever hold.

    `limit` 0: only the device's memory limits it.
    """
    return min(limit, info.total) if limit else info.total


def available(info: MemoryInfo, limit: int) -> int:
    """Returns the size of the largest allocation that could succeed now.

    An upper bound, because memory may be fragmented.
    """
    unused = max(0, info.reserved - info.in_use)
    return max(0, min(info.free + unused, ceiling(info, limit) - info.in_use))


def budget(info: MemoryInfo, limit: int) -> int:
    """Returns the memory that a command with several allocations may plan with: a conservative part of `available`.

    A configured limit is reserved for this process and counts in full, while the device itself may be shared with other
    programs.
    """
    unused = max(0, info.reserved - info.in_use)
    plannable = info.total * SHARE // OF
    if limit:
        plannable = min(plannable, limit)
    return max(0, min(plannable - info.in_use, (info.free + unused) * SHARE // OF))


def check_budget(required: int, info: MemoryInfo, limit: int) -> None:
    """Raises Refusal(OUT_OF_MEMORY) if `required` bytes exceed `budget`. Reserves nothing."""
    allowed = budget(info, limit)
    if required > allowed:
        raise out_of_memory(required, info, limit, largest=allowed)


def not_granted(size: int, info: MemoryInfo, granted: int, limit: int) -> Refusal:
    """Returns the refusal of `size` bytes that the process may not hold now because it shares the device.

    The memory that it lacks is in use by other processes. If `size` bytes never fit, returns the refusal of
    `out_of_memory`.
    """
    maximum = ceiling(info, limit)
    if size > maximum:
        return out_of_memory(size, info, limit)
    largest = max(0, granted - info.in_use)
    return Refusal(
        Reason.OUT_OF_MEMORY,
        f"{size} bytes do not fit now: this process has been granted {granted} of the device's {maximum}, of which "
        f"{info.in_use} are in use; the rest is in use by other processes",
        fix="free buffers that are no longer needed, or wait until others have",
        details={
            "requested": size,
            "free": info.free,
            "total": maximum,
            "reserved": info.reserved,
            "in_use": info.in_use,
            "largest": largest,
            "granted": granted,
            **({"limit": limit} if limit else {}),
            "fits": "not now",
        },
    )


def over_quota(size: int, quota: int, in_use: int, granted: int | None = None, grain: int = 1) -> Refusal:
    """Returns the refusal of `size` bytes that exceed the tenant's quota.

    Args:
      size: size of the allocation, in bytes.
      quota: the tenant's quota on the device, in bytes.
      in_use: number of bytes of the quota that are in use.
      granted: bytes that the front has granted to this process, if the allocation exceeds the grant; None
          otherwise.
      grain: the unit, in bytes, in which the pool takes memory from the device; a quota below one unit admits
          nothing.
    """
    rounded_size = -(-size // grain) * grain
    never = rounded_size > quota
    fix = "free buffers that are no longer needed, in any session of the tenant"
    if size > quota:
        fix = "request less"
    elif never:
        fix = f"raise the tenant's quota to {rounded_size} bytes: memory of this device is taken in pieces of {grain}"
    return Refusal(
        Reason.QUOTA_EXCEEDED,
        f"{size} bytes of device memory were requested; the tenant may have {quota} on a device, of which {in_use} are "
        "in use",
        fix=fix,
        details={
            "requested": size,
            "allowed": quota,
            "in_use": in_use,
            "quota": "device_bytes",
            **({"granted": granted} if granted is not None else {}),
            "fits": "never" if never else "not now",
        },
    )


def out_of_memory(size: int, info: MemoryInfo, limit: int, *, largest: int | None = None) -> Refusal:
    """Returns the refusal of `size` bytes that can never be allocated, or not now, with all numbers.

    `largest` is the largest allocation that could succeed; by default that of `available`.
    """
    maximum = ceiling(info, limit)
    if largest is None:
        largest = available(info, limit)
    details = {
        "requested": size,
        "free": info.free,
        "total": maximum,
        "reserved": info.reserved,
        "in_use": info.in_use,
        "largest": largest,
        **({"limit": limit} if limit else {}),
    }
    requested_text, maximum_text = _readable(size), _readable(maximum)
    numbers = f"{info.free} are free, the pool of this process holds {info.reserved}, of which {info.in_use} are in use"
    if size > maximum:
        return Refusal(
            Reason.OUT_OF_MEMORY,
            f"{requested_text} can never fit: the maximum is {maximum_text} ({numbers})",
            fix="request less, or split the data over several devices",
            details={**details, "fits": "never"},
        )
    return Refusal(
        Reason.OUT_OF_MEMORY,
        f"{requested_text} do not fit now: {_readable(largest)} of {maximum_text} are available ({numbers})",
        fix="free buffers that are no longer needed (their memory is reused once their streams are done), or wait",
        details={**details, "fits": "not now"},
    )


def _readable(size: int) -> str:
    """Returns a size as text: from 1 MiB on in the largest unit of which it is at least 1, followed by the bytes."""
    text = f"{size} bytes"
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size >> shift:
            return f"{size / (1 << shift):.1f}".removesuffix(".0") + f" {unit} ({text})"
    return text
