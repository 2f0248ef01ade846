"""The daemon whose device processes are profiled: `python -m tests.bench.profile.daemon serve ...`, as `hearthd`."""

from __future__ import annotations

from hearthd.cli.main import main
from hearthd.front.supervisor import forkserver

if __name__ == "__main__":
    forkserver.PRELOAD += ("tests.bench.profile.device",)  # type: ignore[assignment]
    main()
