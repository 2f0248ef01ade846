"""The environments: how each is entered, and the tests that it affects.

An environment is a copy of the working tree, a command prefix, variables, and options of pytest. Nothing outside a
scratch directory is changed: mounts and network settings are made in separate namespaces, and end with the run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

STRANGER = 64023
"""The user and group id of `user`; no account of the host has it, as in most containers."""

SMOKE = (
    "tests/daemon/launch/test_launch.py",
    "tests/daemon/transfers/test_transfers.py",
    "tests/daemon/operations/test_first_process.py",
    "tests/daemon/protocol/test_client_process.py",
)
"""Tests of the daemon's main paths."""

USERS = (
    "tests/unit/confinement",
    "tests/unit/device/compiler/test_pool.py",
    "tests/unit/device/platform/test_sandbox.py",
    "tests/unit/front/auth/test_identity.py",
    "tests/daemon/cli/test_mistakes.py",
    "tests/daemon/kernels/test_confinement.py",
    "tests/daemon/tenants/test_tenants.py",
    "tests/deploy/test_systemd.py",
)
"""Tests that confine processes, query the user of a peer, or become another user."""

PATHS = (
    "tests/unit/shared/test_disk.py",
    "tests/unit/shared/test_scratch_dir.py",
    "tests/unit/client/test_import.py",
    "tests/unit/device/compiler/test_cache.py",
    "tests/unit/device/compiler/test_pool.py",
    "tests/unit/device/compiler/test_image_store.py",
    "tests/unit/device/platform/test_sandbox.py",
    "tests/unit/front/audit/test_recorder.py",
    "tests/unit/front/config/test_loader.py",
    "tests/unit/front/lanes/test_hand_over.py",
    "tests/unit/front/lanes/test_lane_offers.py",
    "tests/unit/front/lanes/test_lanes.py",
    "tests/unit/front/daemon/test_process.py",
    "tests/unit/client/session/test_lane_channel.py",
    "tests/daemon/cli/test_mistakes.py",
    "tests/daemon/cli/test_trace.py",
    "tests/daemon/docs/test_examples.py",
    "tests/daemon/protocol/test_framed_calls.py",
    "tests/daemon/transfers/test_lanes.py",
    "tests/deploy/test_locks.py",
)
"""Tests that start programs, or create sockets, files and directories."""

NETWORK = (
    "tests/unit/front/connections",
    "tests/unit/front/config/test_loader.py",
    "tests/unit/front/http/test_server.py",
    "tests/unit/front/auth/test_identity.py",
    "tests/unit/front/peers/test_link.py",
    "tests/unit/front/peers/test_reach.py",
    "tests/unit/front/config/test_peer_targets.py",
    "tests/unit/front/daemon/test_process.py",
    "tests/unit/front/auth/test_tls.py",
    "tests/unit/client/cli/test_doctor.py",
    "tests/unit/client/session/test_connection.py",
    "tests/unit/client/transport/test_grpc.py",
    "tests/unit/client/collectives/test_group_nodes.py",
    "tests/unit/client/transfer/test_striping.py",
    "tests/daemon/tenants/test_admission.py",
    "tests/daemon/cli/test_doctor.py",
    "tests/daemon/cli/test_mistakes.py",
    "tests/daemon/collectives/test_group_targets.py",
    "tests/daemon/collectives/test_group_of_nodes.py",
    "tests/daemon/tenants/test_tls.py",
)
"""Tests that listen on addresses, or connect to them."""

COMPILERS = (
    "tests/unit/confinement",
    "tests/unit/device/compiler/test_cache.py",
    "tests/unit/device/compiler/test_pool.py",
    "tests/unit/device/compiler/test_nvrtc.py",
    "tests/unit/device/platform/test_sandbox.py",
    "tests/unit/device/cpu/test_compiler.py",
    "tests/daemon/cli/test_doctor.py",
    "tests/daemon/kernels/test_compile_limits.py",
    "tests/daemon/operations/test_configuration.py",
    "tests/daemon/kernels/test_confinement.py",
    "tests/daemon/kernels/test_modules.py",
    "tests/daemon/tenants/test_tenants.py",
)
"""Tests of compile workers, of device processes, and of their confinement."""

SHARED_MEMORY = (
    "tests/unit/device/cpu/collective/test_shared_exchange.py",
    "tests/unit/device/cpu/collective/test_shared_failures.py",
    "tests/unit/device/cpu/collective/test_shared_messages.py",
    "tests/unit/device/cpu/collective/test_shared_segment.py",
    "tests/unit/device/resources/test_host_pool.py",
    "tests/unit/device/channels/test_segment_channel.py",
    "tests/unit/device/transfers/test_without_pinned.py",
    "tests/unit/client/transport/test_segment_pool.py",
    "tests/daemon/collectives/test_collectives.py",
    "tests/daemon/memory/test_durable.py",
    "tests/daemon/memory/test_ipc.py",
    "tests/daemon/memory/test_memory.py",
    "tests/daemon/memory/test_oversubscription.py",
    "tests/daemon/transfers/test_pinned.py",
    "tests/daemon/memory/test_published.py",
    "tests/daemon/memory/test_published_ends.py",
    "tests/daemon/memory/test_published_reads.py",
    "tests/daemon/transfers/test_segments.py",
)
"""Tests that share memory between processes, or use much of it."""

CLOCKS = (
    "tests/unit/client/session/test_interrupted_waits.py",
    "tests/unit/client/session/test_receiver_role.py",
    "tests/unit/client/session/test_watchdog.py",
    "tests/unit/device/scheduler/test_sharing.py",
    "tests/unit/device/resources/test_idle_waits.py",
    "tests/unit/front/supervisor/test_isolation.py",
    "tests/unit/front/overload/test_policy.py",
    "tests/unit/front/supervisor/test_workers.py",
    "tests/daemon/tenants/test_sharing.py",
    "tests/daemon/operations/test_drain.py",
    "tests/daemon/faults/test_deadlines.py",
    "tests/daemon/faults/test_endless.py",
    "tests/daemon/faults/test_leases.py",
    "tests/daemon/collectives/test_missing.py",
    "tests/daemon/protocol/test_conformance_waits.py",
    "tests/daemon/operations/test_health.py",
    "tests/daemon/faults/test_retries.py",
)
"""Tests of deadlines, leases and shares."""

WHOLE = ("tests",)

_REACHABLE = """
set -e
# The interpreter may lie in a home directory that others may not enter. In this mount namespace, and nowhere else, the
# directories above it are empty ones that others may enter.
if [ -n "$HIDDEN" ]; then
    stage=$(mktemp -d)
    mount --bind "$PREFIX" "$stage"
    mount -t tmpfs -o mode=755 tmpfs "$HIDDEN"
    mkdir -p "$PREFIX"
    mount --move "$stage" "$PREFIX"
    rmdir "$stage"
fi
exec setpriv --reuid="$STRANGER" --regid="$STRANGER" --clear-groups "$@"
"""
_SMALL_SHM = 'set -e; mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm; exec "$@"'
_NO_IPV6 = 'set -e; ip link set lo up; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; exec "$@"'


@dataclass(frozen=True)
class Environment:
    """An environment: one condition, or several related ones."""

    name: str
    says: str
    """A description for the list, in one line."""
    tests: tuple[str, ...]
    """Tests that the environment affects."""
    folder: str = "clone"
    """The copy's path below the scratch directory."""
    mode: int = 0o755
    """Mode of the directory above the copy."""
    stranger: bool = False
    """True if the copy, its home and its temporary files belong to `STRANGER`."""
    enter: tuple[str, ...] = ()
    """Prefix of the command."""
    root: bool = False
    """True if only root can enter it."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables; `{scratch}` is replaced by the scratch directory."""
    options: tuple[str, ...] = ()
    """Options of pytest."""
    beside: int = 0
    """Number of busy loops that run in the meantime."""
    module: str = ""
    """A module of the copy that enters the environment and runs the given command."""


ENVIRONMENTS = (
    Environment("plain", "a copy of the working tree, as it is", PATHS + SMOKE),
    Environment(
        "user", "an ordinary user, without an account or groups", USERS + PATHS + SMOKE,
        stranger=True, root=True, enter=("unshare", "--mount", "sh", "-c", _REACHABLE, "sh"),
    ),
    Environment("private", "below a directory that other users may not enter", USERS, "private/clone", mode=0o700),
    Environment("space", "in a folder with a space and an accent", PATHS + SMOKE, "a folder of é/the clone"),
    Environment(
        "shm", "/dev/shm of 64 MiB, as in a container", SHARED_MEMORY + SMOKE,
        root=True, enter=("unshare", "--mount", "sh", "-c", _SMALL_SHM, "sh"),
    ),
    Environment(
        "landlock", "a kernel without Landlock", COMPILERS + SMOKE, module="tests.environments.without_landlock",
    ),
    Environment(
        "ipv6", "no IPv6, and no network but the loopback interface", NETWORK + SMOKE,
        root=True, enter=("unshare", "--net", "sh", "-c", _NO_IPV6, "sh"),
    ),
    Environment(
        "tmpdir", "a temporary directory with a long path", PATHS + SMOKE,
        variables={"TMPDIR": "{scratch}/" + "temporary-files-of-this-run/" * 4},
    ),
    Environment("busy", "two busy loops at the same time", CLOCKS, beside=2),
    Environment("five", "five workers", CLOCKS + SMOKE, options=("-n", "5")),
)  # fmt: skip
