"""`hearthd serve`.

The forkserver starts first (`cli.main` starts it in a standalone daemon), so that its imports run in parallel with the
front's.

This module therefore imports only what that needs. The rest of the front is imported after the forkserver was started.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hearth_proto import grpc_import
from hearthd.confinement import attributes
from hearthd.front.config.loader import Config, ConfigError, tenants
from hearthd.front.supervisor import backends, forkserver
from hearthd.front.supervisor.launcher import ForkServerLauncher
from hearthd.shared.malloc import keep_freed_memory
from hearthd.shared.sighup import Hangup

_KEEP_BYTES = 64 << 20
"""Number of freed bytes that the front keeps for the next chunks: enough for a few transfers."""
_ARENAS = 1
"""Number of heap arenas. gRPC receives in any of its threads. If each thread had its own heap, each heap would grow to
the most that the thread ever held, and keep it. In a single heap, the next chunk reuses the memory of the last, in any
thread."""


def serve(
    config: Config,
    read: Callable[[], Config] | None = None,
    hangup: Hangup | None = None,
) -> int:
    """Runs the daemon until it is stopped.

    Returns its exit code: 0, 1 after a failure, or 2 for a configuration that cannot be used on this host. `read` reads
    the configuration again for a reload. `hangup` has handled SIGHUP until now.
    """
    keep_freed_memory(_KEEP_BYTES, arenas=_ARENAS)
    # Protects tokens, keys and the secrets of sessions from other processes, including those of this user.
    attributes.close_to_others()
    try:
        tenants(config)
        backend, devices = backends.choose(config)
    except ConfigError as error:
        forkserver.abandon()
        print(f"hearthd: {error}", file=sys.stderr)
        return 2
    launcher = ForkServerLauncher(backend)
    launcher.warm_up()

    # gRPC's own log lines are not JSON, and unauthenticated peers could fill the log with them. A value of
    # GRPC_VERBOSITY in the environment takes precedence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    grpc_import.import_grpc(grpc_import.LISTENER)
    import uvloop

    from hearthd.front import opentelemetry
    from hearthd.front.daemon.daemon import Daemon
    from hearthd.front.daemon.orphans import reaping_orphans
    from hearthd.front.sockets import ListenError

    opentelemetry.switch_on()

    async def main() -> None:
        with reaping_orphans(launcher.pids):
            await Daemon(config, backend, devices, launcher, read, hangup).run()

    try:
        uvloop.run(main())
    except ListenError as error:
        print(f"hearthd: {error}", file=sys.stderr)
        return 2 if error.permanent else 1
    finally:
        opentelemetry.switch_off()
    return 0
