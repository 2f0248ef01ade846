"""The daemon: `front/` holds the sockets, `device/` is one device process. They meet in frames only."""

from importlib import metadata


def version() -> str:
    """The version of the installed distribution; "0+unknown" where it runs from a tree that is not installed."""
    try:
        return metadata.version("hearth-gpu")
    except metadata.PackageNotFoundError:
        return "0+unknown"
