"""The daemon: `front/` owns the sockets, `device/` is one device process. They communicate through frames only."""

import functools


@functools.cache
def version() -> str:
    """Returns the version of the installed distribution; "0+unknown" if the code runs from a tree that is not
    installed."""
    from importlib import metadata  # takes longer than all other imports of a short-lived process

    try:
        return metadata.version("hearth-gpu")
    except metadata.PackageNotFoundError:
        return "0+unknown"
