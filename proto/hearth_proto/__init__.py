"""The wire protocol that client and daemon share: messages, frames, packed launches and reason codes.

Imports nothing of the client (`hearth`) and nothing of the daemon (`hearthd`).
"""

VERSION = "0.2.0"
"""The version of the distribution that client, daemon and this package are parts of."""

PROTOCOL_MIN = 1
"""The oldest protocol version that this build supports."""

PROTOCOL_MAX = 1
"""The newest protocol version that this build supports."""
