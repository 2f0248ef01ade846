"""Checks of the daemon itself, through a session: its versions and state, this client's identity, its devices."""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hearth.cli.doctor.check import Check, Status, failed_check
from hearth.errors import AuthenticationError, HearthError
from hearth_proto import PROTOCOL_MAX, PROTOCOL_MIN, VERSION

if TYPE_CHECKING:
    from hearth.blocking.device import Device
    from hearth.blocking.node import Node
    from hearth.endpoint.target import Target
    from hearth.types import DeviceInfo, NodeInfo

SKEW_S = 5.0
"""Maximum difference of the clocks, in seconds. Beyond it, logs are hard to correlate, and certificates become valid
too late or too early."""
OPEN_TENANT = "default"
"""Tenant of all clients at a daemon without tenants."""
_RECENT_S = 3600.0
_SLOW_S = 10.0
_STATE_FIXES = {
    "fenced": "find the cause in the daemon's log, then run `hearth restart-device {}` (requires the right to "
    "administer)",
    "lost": "a new process is being started: check again in a second",
    "stalled": "the device process continues, or is replaced after devices.ping_timeout; check for a debugger or an "
    "overloaded machine",
    "starting": "check again in a second",
}
"""Remedy for each state in which a device does not serve. `{}` is replaced by the device's number."""
_SOURCE = """
extern "C" __global__ void doctor_%s(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i] + %d.0f;
}
"""


def versions(node: Node) -> list[Check]:
    """Checks the daemon's version, and its own report of its state."""
    info = node.describe()
    return [version(info), state(info)]


def version(info: NodeInfo) -> Check:
    """Checks the daemon's version and its protocol versions."""
    oldest, newest = info.protocol
    detail = (
        f"hearthd {info.server_version} on {info.name}; protocol {oldest} to {newest}, the client supports "
        f"{PROTOCOL_MIN} to {PROTOCOL_MAX}"
    )
    if newest < PROTOCOL_MIN or oldest > PROTOCOL_MAX:
        return Check("daemon", "failed", detail, "install the same version of the client and the daemon")
    if info.server_version.split(".")[:2] != VERSION.split(".")[:2]:
        detail = f"{detail}; the client is version {VERSION}"
        return Check("daemon", "warning", detail, "install the same version on both sides")
    return Check("daemon", "ok", detail)


def state(info: NodeInfo) -> Check:
    """Checks that the daemon accepts work."""
    if info.draining:
        detail = "the daemon is draining: it accepts no new sessions and will end the existing ones soon"
        return Check("ready", "warning", detail, "wait until the daemon has been restarted, or use another daemon")
    serving = sum(device.state == "serving" for device in info.devices)
    if not serving:
        return Check("ready", "failed", "no device is serving", "check the devices below, and the daemon's log")
    return Check("ready", "ok", f"{serving} of {len(info.devices)} devices are serving")


def devices(info: NodeInfo) -> list[Check]:
    """Checks each device's state, driver and runtime."""
    if not info.devices:
        return [
            Check(
                "devices",
                "failed",
                "no device is visible to this client",
                "check [devices] visible in the daemon's configuration, and the output of `nvidia-smi` on its host",
            )
        ]
    return [_device(device) for device in info.devices]


def _device(device: DeviceInfo) -> Check:
    name, properties = f"device {device.ordinal}", device.properties
    detail = f"{properties.name} ({properties.backend}), {device.state}"
    if device.generation > 1:
        detail += f", generation {device.generation}"
    reason = f": {device.detail}" if device.detail else ""
    if device.state != "serving":
        fix = _STATE_FIXES.get(device.state, "check the daemon's log").format(device.ordinal)
        return Check(name, "failed" if device.state == "fenced" else "warning", detail + reason, fix)
    if properties.backend == "cuda":
        major, minor = properties.compute_capability
        detail += f"; sm_{major}{minor}, driver {properties.driver_version}, runtime {properties.runtime_version}"
    elif properties.confinement:
        detail += f"; confined by {properties.confinement}"
    else:
        detail += "; not confined: kernels may do everything that the daemon's user may do"
    return Check(name, "ok", detail)


def faults(document: Mapping[str, Any], now: float) -> Check:
    """Checks the faults of the last hour in the daemon's status. Restarts by operators are no faults."""
    entries = document.get("faults")
    if not isinstance(entries, list):
        return Check("faults", "skipped", "the daemon's status does not list faults")
    recent = [
        fault
        for fault in entries
        if now - (fault.get("time_unix") or 0) < _RECENT_S and fault.get("reason") != "restart"
    ]
    if not recent:
        return Check("faults", "ok", "none in the last hour")
    last = recent[0]
    kernels = ", ".join(last.get("kernels") or ()) or "no kernel"
    detail = (
        f"{len(recent)} in the last hour; the last {now - last.get('time_unix', now):.0f} s ago on device "
        f"{last.get('device')}: {last.get('reason')}, {last.get('detail')} ({kernels} was running)"
    )
    fix = "run that kernel with mode='validate', or with isolation='dedicated'"
    return Check("faults", "warning", detail, fix)


def descriptors(document: Mapping[str, Any]) -> Check:
    """Checks that the daemon's limit on open files leaves clients enough connections."""
    limits = document.get("descriptors")
    if not isinstance(limits, dict):
        return Check(
            "descriptors",
            "skipped",
            "the daemon's limit on open files is shown only to clients with the right to observe",
        )
    limit, needed, shares = limits["limit"], limits["needed"], limits["shares"]
    detail = (
        f"the daemon may open {limit} files: {shares['grpc']} connections for gRPC, {shares['call']} for "
        "its call socket"
    )
    if limit >= needed:
        return Check("descriptors", "ok", detail)
    fix = "raise the daemon's limit on open files (LimitNOFILE in the unit, ulimit -n), or lower [connections] max"
    return Check("descriptors", "warning", f"{detail}; its configuration needs {needed}", fix)


def identity(node: Node, shown: str, target: Target) -> Check:
    """Checks the identity of this client, and whether other users of this host share it."""
    detail = f"tenant {node.tenant!r}, {node.isolation} device processes; credentials sent: {shown}"
    if node.tenant == OPEN_TENANT and open_to_every_login(target):
        return Check(
            "identity",
            "warning",
            f"{detail}; the daemon requires no credentials here, so every user of this host has all rights",
            'configure [[tenants]], or set listen.grpc = "" and use the Unix socket',
        )
    return Check("identity", "ok", detail)


def open_to_every_login(target: Target) -> bool:
    """True if every user of this host can connect to `target`.

    That is so for a loopback port, and for a socket that is writable for others.
    """
    if not target.address.startswith("unix:"):
        return target.loopback
    try:
        mode = os.stat(target.address.removeprefix("unix:")).st_mode  # noqa: PTH116
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH)


def clock(node: Node, before: float, after: float) -> Check:
    """Compares the daemon's time at which it opened this session with this host's time before and after."""
    opened = next((session.opened for session in node.sessions() if session.session_id == node.session_id), None)
    if opened is None:
        return Check("clock", "skipped", "the daemon does not list this session")
    return skew(opened, before, after)


def skew(event: float, before: float, after: float) -> Check:
    """Checks the daemon's clock by the time `event` at which an event happened on that clock.

    The event happened between `before` and `after` on this host's clock. All times are in seconds since 1970.
    """
    offset = event - after if event > after else min(0.0, event - before)
    if abs(offset) > SKEW_S:
        direction = "ahead" if offset > 0 else "behind"
        return Check(
            "clock",
            "warning",
            f"the daemon's clock is {abs(offset):.1f} s {direction}",
            "run NTP (chrony) on both hosts",
        )
    return Check("clock", "ok", f"within {max(abs(offset), after - before):.1f} s of the daemon's clock")


def work(device: Device) -> list[Check]:
    """Checks a kernel that is in no cache yet, from source to result, and the rights that the work needs."""
    import numpy as np

    name = f"compiler {device.ordinal}"
    number = secrets.randbelow(1 << 20)
    started = time.perf_counter()
    allowed: list[str] = []
    try:
        x = device.asarray(np.arange(256, dtype=np.float32), blocking=True)
        y = device.zeros(256, np.float32)
        device.synchronize()
        allowed = ["allocate", "write"]
        module = device.RawModule(_SOURCE % (number, number))
        module.compile()
        compiled = time.perf_counter()
        module.get_function(f"doctor_{number}")((1,), (256,), (x, y, np.int32(256)))
        device.synchronize()
        allowed.append("launch")
        result = y.get()
        allowed.append("read")
    except AuthenticationError as error:
        detail = f"{error.message} (allowed: {', '.join(allowed) or 'none of the operations'})"
        refused: Status = "skipped" if error.reason == "PERMISSION_DENIED" else "failed"
        return [Check(name, "warning" if allowed else refused, detail, error.fix)]
    except HearthError as error:
        if error.reason == "NO_COMPILER":
            fix = error.fix or "install a C++ compiler on the daemon's host, or run `pip install ziglang` there"
            return [Check(name, "failed", error.message, fix)]
        return [failed_check(name, error)]
    elapsed = time.perf_counter() - started
    expected = 2 * np.arange(256, dtype=np.float32) + np.float32(number)
    if not np.array_equal(result, expected):
        fix = "stop using this device: fence it, and test its memory"
        return [Check(name, "failed", "a kernel computed a wrong result", fix)]
    detail = f"first result of a new kernel after {_ms(elapsed)} ({_ms(compiled - started)} of it compiling); "
    detail += f"allowed: {', '.join(allowed)}"
    if elapsed > _SLOW_S:
        return [Check(name, "warning", detail, "the host is busy, or its compiler is slow: check [compile] workers")]
    return [Check(name, "ok", detail)]


def lanes(device: Device) -> list[Check]:
    """Checks the connections besides gRPC: lanes for commands, shared memory, stripes."""
    from hearth.transfer.shared_memory import SharedMemory
    from hearth.transfer.stripe_pool import Stripes

    connection = device._connection
    transport = connection.transport
    with suppress(HearthError):  # an error of earlier work, which has been reported
        device.synchronize()
    attachment = connection.attachment()
    if not transport.target.startswith("unix:"):
        if connection.part(Stripes).open(attachment.session.generation, 1):
            return [Check("stripes", "ok", "large arrays use separate connections")]
        fix = (
            "open the port of [listen] lanes, 7423 by default, to this host; check [lanes] in the daemon's "
            "configuration"
        )
        return [_unavailable("stripes", "large arrays are sent through gRPC", device, fix)]
    checks = []
    if attachment.channel is not None:
        checks.append(Check("lane", "ok", "commands go directly to the device process"))
    else:
        reason = "the daemon offers no lane ([lanes] enabled = false, or a quota on the tenant's queue)"
        fix = (
            "enable [lanes], remove the limits queued_commands and queued_bytes, or mount the whole directory of the "
            "socket"
        )
        detail = f"commands go through the front: {reason}, or its lane socket cannot be reached from here"
        checks.append(Check("lane", "warning", detail, fix))
    if connection.part(SharedMemory).for_attachment(attachment) is not None:
        checks.append(Check("shared memory", "ok", "arrays are shared with the device process"))
    else:
        fix = "check [lanes] segment_bytes and the limits on locked memory; mount the whole directory of the socket"
        checks.append(_unavailable("shared memory", "arrays are sent through gRPC", device, fix))
    return checks


def local_driver(info: NodeInfo, unix: bool, load: Callable[[str], object] | None = None) -> Check:
    """Checks the GPU driver on the client's side, which only `DeviceArray.ipc` needs."""
    name = "local driver"
    if not unix or all(device.properties.backend != "cuda" for device in info.devices):
        return Check(name, "skipped", "needed only by x.ipc(), for CUDA devices of this host")
    import ctypes

    try:
        (load or ctypes.CDLL)("libcuda.so.1")
    except OSError:
        fix = "not needed unless x.ipc() is used; in a container, provide the driver with --gpus all"
        return Check(name, "warning", "libcuda.so.1 was not found: x.ipc() cannot map arrays", fix)
    return Check(name, "ok", "libcuda.so.1 was found: x.ipc() can map arrays")


def _unavailable(name: str, effect: str, device: Device, fix: str) -> Check:
    """Returns the check of connections for bulk data that the client does not have, with the daemon's reason.

    Skipped if the client has no right to them.
    """
    from hearth_proto.v1 import device_pb2

    connection = device._connection
    request = device_pb2.OpenBulkRequest(
        session_token=connection.token, device=device.ordinal, generation=connection.generation, stripes=1
    )
    try:
        answer = connection.transport.open_bulk(request)
    except AuthenticationError as error:
        return Check(name, "skipped", f"{effect}: {error.message}", error.fix)
    except HearthError as error:
        return Check(name, "warning", f"{effect}: {error.message}", fix)
    if connection.transport.target.startswith("unix:"):
        reason = "no memory could be shared with the device process"
    else:
        reason = f"port {answer.port} of {answer.host or 'the daemon'} could not be reached"
    return Check(name, "warning", f"{effect}: {reason}", fix)


def select_devices(info: NodeInfo, ordinals: Sequence[int], requested: int | None) -> list[int]:
    """Returns the devices to check: the requested one, otherwise those that serve."""
    if requested is not None:
        return [ordinal for ordinal in ordinals if ordinal == requested]
    return [device.ordinal for device in info.devices if device.state == "serving" and device.ordinal in ordinals]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"
