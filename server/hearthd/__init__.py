"""The daemon: `front/` holds the sockets, `device/` is one device process. They meet in frames only."""

import functools


@functools.cache
def version() -> str:
    """The version of the installed distribution; "0+unknown" where it runs from a tree that is not installed."""
    from importlib import metadata  # takes longer than all else that a short-lived process imports

    try:
        return metadata.version("hearth-gpu")
    except metadata.PackageNotFoundError:
        return "0+unknown"
