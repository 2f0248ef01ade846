"""The door through which the front starts a device process: all that it names of `device/`.

Imports are made in the new process, so that the front loads nothing of what runs there.
"""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection

from hearthd.shared.device_spec import DeviceSpec


def device_main(
    link: socket.socket,
    spec: DeviceSpec,
    descriptors: socket.socket | None = None,
    lifeline: Connection | None = None,
) -> None:
    """Entry point of a device process; `link` is its end of the socket pair, `descriptors` of the one beside it,
    `lifeline` of a pipe whose other end closes with the front."""
    from hearthd.device.process.main import main

    main(link, spec, descriptors, lifeline)
