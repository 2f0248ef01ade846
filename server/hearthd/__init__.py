"""The daemon: `front/` holds the sockets, `device/` is one device process. They meet in frames only."""

from hearth_proto import VERSION


def version() -> str:
    """Returns the version of the distribution."""
    return VERSION
