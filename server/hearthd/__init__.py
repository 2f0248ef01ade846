"""The daemon: `front/` owns the sockets, `device/` is one device process. They communicate through frames only."""

from hearth_proto import VERSION


def version() -> str:
    """Returns the version of the distribution."""
    return VERSION
