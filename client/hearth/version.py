"""The version of this distribution."""

from hearth_proto import VERSION as __version__

__all__ = ["__version__"]
