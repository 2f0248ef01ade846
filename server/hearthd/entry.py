"""Entry point of device processes: the only code through which the front refers to `device/`.

Imports are made in the new process, so that the front does not load the code of device processes.
"""

from __future__ import annotations

import socket
from multiprocessing.connection import Connection

from hearthd.shared.device_spec import DeviceSpec


def device_main(
    link: socket.socket,
    spec: DeviceSpec,
    descriptors: socket.socket,
    lifeline: Connection,
) -> None:
    """Runs a device process.

    `link` is its end of the socket pair to the front, `descriptors` its end of the socket pair for file descriptors,
    `lifeline` its end of a pipe whose other end closes when the front ends.
    """
    from hearthd.device.process.main import main

    main(link, spec, descriptors, lifeline)
