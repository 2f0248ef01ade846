"""How notebooks show Hearth's objects: small tables of what is known here. Nothing is asked of the daemon, nothing
waits, and what others have named is escaped."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hearth.arrays.array import DeviceArray
    from hearth.device import Device
    from hearth.kernels.function import Function
    from hearth.node import Node
    from hearth.profiling.profile import Profile
    from hearth.profiling.trace import Trace
    from hearth.types import MemoryUsage

_MOST_ROWS = 20


def array(shown: DeviceArray) -> str:
    """Shape, dtype, size and place; not the contents, which take a wait and a copy."""
    rows: list[tuple[str, object]] = [
        ("shape", shown.shape),
        ("dtype", shown.dtype),
        ("size", size(shown.nbytes)),
        ("device", _device_name(shown.device)),
    ]
    if not shown.flags.c_contiguous:
        rows.append(("strides", shown.strides))
    marks = [
        text
        for text, holds in (
            ("freed", shown._memory.owner is None),
            ("lost", shown._memory.space.lost and not shown.durable),
            ("read-only", shown._memory.read_only),
            ("durable", shown.durable),
        )
        if holds
    ]
    if marks:
        rows.append(("state", ", ".join(marks)))
    return pairs("DeviceArray", rows)


def node(shown: Node) -> str:
    """Its devices, as of the connect."""
    session = shown._session
    state = "closed" if shown.closed else "draining" if shown.draining else f"session {shown.session_id}"
    rows = [
        (
            entry.ordinal,
            entry.properties.name,
            entry.properties.backend,
            size(entry.properties.total_memory),
            entry.properties.multiprocessor_count,
        )
        for entry in session.opened.devices
    ]
    title = f"Node {shown.name} at {session.transport.target}: {state}"
    return table(title, ("device", "name", "backend", "memory", "multiprocessors"), rows)


def device(shown: Device) -> str:
    """Its properties, as of the connect."""
    found = shown.properties
    rows = [
        ("node", shown.node.name),
        ("backend", found.backend),
        ("compute capability", ".".join(map(str, found.compute_capability))),
        ("memory", size(found.total_memory)),
        ("multiprocessors", found.multiprocessor_count),
        ("threads of a block", found.max_threads_per_block),
        ("shared memory of a block", size(found.shared_mem_per_block_optin or found.shared_mem_per_block)),
    ]
    return pairs(f"Device {shown.ordinal}: {found.name}", rows)


def memory(shown: MemoryUsage) -> str:
    """All sizes, readable."""
    rows = [
        (name.removeprefix("bytes_").replace("_", " "), value if name == "allocations" else size(value))
        for name, value in vars(shown).items()
        if value or not name.startswith("bytes_")
    ]
    return pairs("MemoryUsage", rows)


def function(shown: Function) -> str:
    """Its attributes, where they are known already: to ask for them waits for the compile."""
    described = shown._described
    rows: list[tuple[str, object]] = [("device", shown._connection.ordinal)]
    if described is None:
        rows.append(("attributes", "not asked for yet: .attributes, which waits for the compile"))
    else:
        rows += [
            ("registers of a thread", described.registers),
            ("static shared memory", size(described.static_shared_bytes)),
            ("local memory of a thread", size(described.local_bytes)),
            ("constant memory", size(described.constant_bytes)),
            ("most threads of a block", described.max_threads_per_block),
            ("parameters", f"{len(described.parameters)}, {sum(each.size for each in described.parameters)} bytes"),
        ]
    return pairs(f"Kernel {shown.name}", rows)


def profile(shown: Profile) -> str:
    """Its times."""
    result = shown._result
    if result is None:
        return pairs("Profile", [("state", "running")])
    return pairs("Profile", [("device", duration(result.device_ns)), ("wall", duration(result.wall_ns))])


def trace(shown: Trace) -> str:
    """Time on the device by kind of command and kernel, the longest first."""
    if shown._result is None:
        return pairs("Trace", [("state", "running")])
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for event in shown.events:
        entry = sums[event.name, event.kernel]
        entry[0] += 1
        entry[1] += event.device_ns
        entry[2] += event.bytes
        entry[3] += bool(event.error)
    ordered = sorted(sums.items(), key=lambda item: item[1][1], reverse=True)
    rows = [
        (name, kernel, count, duration(spent), duration(spent / count), size(moved) if moved else "", failed or "")
        for (name, kernel), (count, spent, moved, failed) in ordered
    ]
    title = f"Trace of {shown._name}: {len(shown.events)} commands"
    if shown.dropped:
        title += f", {shown.dropped} more dropped"
    return table(title, ("command", "kernel", "count", "device time", "each", "bytes", "failed"), rows)


# ---- what they are made of ----


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A title and rows of a name and a value."""
    body = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<div><b>hearth.{_text(title)}</b><table>{body}</table></div>"


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A title and rows under a head, the first twenty of them."""
    cells = "".join(f"<th>{_text(name)}</th>" for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{_text(value)}</td>' for value in row)}</tr>" for row in rows[:_MOST_ROWS])
    more = len(rows) - _MOST_ROWS
    rest = f"<tr><td colspan={len(head)}>and {more} more</td></tr>" if more > 0 else ""
    parts = f"<thead><tr>{cells}</tr></thead><tbody>{body}{rest}</tbody>"
    return f"<div><b>hearth.{_text(title)}</b><table>{parts}</table></div>"


def size(count: float) -> str:
    """Bytes, as people read them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" or count == int(count) else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def duration(nanoseconds: float) -> str:
    """A time, as people read it."""
    for unit in ("ns", "µs", "ms"):
        if nanoseconds < 1000:
            return f"{nanoseconds:.3g} {unit}"
        nanoseconds /= 1000
    return f"{nanoseconds:.3f} s"


def _device_name(shown: Device) -> str:
    properties = shown.properties
    return f"{shown.ordinal}: {properties.name} ({properties.backend}) on {shown.node.name}"


def _text(value: Any) -> str:
    return html.escape(str(value))
