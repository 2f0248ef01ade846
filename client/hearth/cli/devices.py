"""`hearth devices`: lists the node's devices and their properties."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from hearth.cli import connect_options
from hearth.cli.format import output, units
from hearth.cli.format.complaint import invalid_argument
from hearth.cli.format.printable import printable
from hearth.errors import ArgumentError

if TYPE_CHECKING:
    from hearth.types import DeviceInfo, NodeInfo

_BYTES = frozenset(
    {
        "total_memory",
        "shared_mem_per_block",
        "shared_mem_per_block_optin",
        "l2_cache_bytes",
        "memory_alignment",
        "access_policy_max_window_size",
        "persisting_l2_cache_max_size",
        "persisting_l2_cache_size",
    }
)


def add_to(commands: Any) -> None:
    """Adds the command and its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "devices",
        help="list the node's devices and their properties",
        description="Lists the node's devices, or all properties of one device. Opens no session.",
    )
    parser.add_argument("device", nargs="?", metavar="N", help="show only this device, with all its properties")
    connect_options.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the devices. Raises `HearthError`."""
    ordinal = _selected_ordinal(arguments)
    with connect_options.open_admin(arguments) as admin:
        node = admin.describe()
        target = connect_options.target_text(admin.target)
    devices = [device for device in node.devices if ordinal in (None, device.ordinal)]
    if ordinal is not None and not devices:
        ordinals = ", ".join(str(device.ordinal) for device in node.devices)
        raise ArgumentError(
            f"node {node.name} has no device {ordinal}; it has {ordinals or 'none'}.",
            reason="DEVICE_NOT_FOUND",
            fix="list the devices with `hearth devices`.",
        )
    document = {"target": target, "node": node.name, "devices": [_document(device) for device in devices]}
    output.emit(document, arguments.json, "" if arguments.json else _text(node, devices, ordinal is not None))
    return 0


def _selected_ordinal(arguments: argparse.Namespace) -> int | None:
    """Returns N, or None for all devices.

    Because both arguments are optional, a single word that is not a number is taken as TARGET. Raises `ArgumentError`.
    """
    word: str | None = arguments.device
    if word is None:
        return None
    try:
        return connect_options.ordinal(word)
    except argparse.ArgumentTypeError as error:
        if arguments.target is not None or word.startswith("-") or word.isdecimal():
            raise invalid_argument(str(error), "list the devices with `hearth devices`") from None
    arguments.target = word
    return None


def _document(device: DeviceInfo) -> dict[str, Any]:
    document = dataclasses.asdict(device)
    document["properties"]["features"] = sorted(device.properties.features)
    return document


def _text(node: NodeInfo, devices: list[DeviceInfo], detailed: bool) -> str:
    if detailed:
        return "\n\n".join(map(_detail, devices))
    if not devices:
        return f"node {printable(node.name)} has no devices"
    from hearth.cli.format.table import table

    header = ["DEVICE", "NAME", "BACKEND", "STATE", "GEN", "MEMORY", "CC", "SM", "CLOCK", "DRIVER", "UUID"]
    rows = []
    for device in devices:
        properties = device.properties
        rows.append(
            [
                str(device.ordinal),
                printable(properties.name),
                printable(properties.backend),
                device.state,
                str(device.generation),
                units.size(properties.total_memory),
                ".".join(map(str, properties.compute_capability)),
                str(properties.multiprocessor_count),
                _clock(properties.clock_rate_khz),
                printable(properties.driver_version) or units.NONE,
                printable(properties.uuid),
            ]
        )
    return table(header, rows, frozenset({0, 4, 5, 6, 7, 8}))


def _detail(device: DeviceInfo) -> str:
    properties = device.properties
    names = [field.name for field in dataclasses.fields(properties) if field.name not in ("name", "features")]
    rows = [
        ("state", device.state + (f": {printable(device.detail)}" if device.detail else "")),
        ("generation", str(device.generation)),
        *((name, _value(name, getattr(properties, name))) for name in [*names, "features"]),
    ]
    for process in device.processes:
        owner = f"session {printable(process.session_id)} of " if process.session_id else ""
        memory = f"{units.size(process.memory_held)} of {units.size(process.memory_granted)} granted"
        rows.append(
            (
                f"process {process.pid}",
                f"{process.state}, {owner}{printable(process.tenant) or 'all tenants'}, {memory}",
            )
        )
    name_width = max(len(name) for name, _ in rows)
    heading = f"device {device.ordinal}: {printable(properties.name)}"
    return "\n".join([heading, *(f"  {name.ljust(name_width)}  {value}".rstrip() for name, value in rows)])


def _value(name: str, value: Any) -> str:
    if name == "clock_rate_khz":
        return _clock(value)
    if name == "compute_capability":
        return ".".join(map(str, value))
    if name == "features":
        return ", ".join(map(printable, sorted(value))) or "none"
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    return units.size(value) if name in _BYTES else printable(value) or units.NONE


def _clock(khz: int) -> str:
    return f"{khz / 1e6:.2f} GHz" if khz else units.NONE
