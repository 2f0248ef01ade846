"""`hearthd serve`: the forkserver is started first (by `cli.main`, where the daemon is on its own), so that its imports
run beside the front's.

So nothing is imported here that is not needed for that; the rest of the front is, when the forkserver is on its way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from hearth_proto import polling
from hearthd.confinement import attributes
from hearthd.front.config.loader import Config, ConfigError, tenants
from hearthd.front.supervisor import backends, forkserver
from hearthd.front.supervisor.launcher import ForkServerLauncher
from hearthd.shared.malloc import keep_freed_memory
from hearthd.shared.sighup import Hangup

_KEEP_BYTES = 64 << 20
"""Freed memory that the front keeps for the next chunks: a few transfers' worth."""
_ARENAS = 1
"""gRPC receives in any of its threads. With a heap for each, every one of them grows to what it ever held at once and
keeps that for itself; from a single one, the next chunk takes the place of the last in any thread."""


def serve(
    config: Config,
    on_error: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    read: Callable[[], Config] | None = None,
    hangup: Hangup | None = None,
) -> int:
    """Runs the daemon until it is stopped; returns its exit code: 0, 1 for a failure, 2 for a configuration that cannot
    work here. `read` reads the configuration again for a reload; `hangup` has had that signal until now."""
    keep_freed_memory(_KEEP_BYTES, arenas=_ARENAS)
    attributes.close_to_others()  # tokens, keys and sessions' secrets: also to processes of this user
    try:
        tenants(config)
        backend, devices = backends.choose(config)
    except ConfigError as error:
        forkserver.abandon()
        on_error(f"hearthd: {error}")
        return 2
    launcher = ForkServerLauncher(backend)
    launcher.warm_up()

    # Lines of gRPC's own are not JSON, and strangers could fill the log with them. GRPC_VERBOSITY, where set, counts.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    polling.import_grpc(polling.LISTENER)
    import uvloop

    from hearthd.front import opentelemetry
    from hearthd.front.daemon.daemon import Daemon
    from hearthd.front.daemon.orphans import adopted
    from hearthd.front.sockets import ListenError

    opentelemetry.switch_on()

    async def main() -> None:
        with adopted(launcher.pids):
            await Daemon(config, backend, devices, launcher, read, hangup).run()

    try:
        uvloop.run(main())
    except ListenError as error:
        on_error(f"hearthd: {error}")
        return 1
    finally:
        opentelemetry.switch_off()
    return 0
