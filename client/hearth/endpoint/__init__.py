"""A daemon's address and credentials, the opening of sessions, and requests outside of a session.

Above: `hearth.base_stream`. Below: `hearth.transfer`.
"""
