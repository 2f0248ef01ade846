"""A daemon's address and credentials, the opening of sessions there, and questions outside of a session.

Above: `hearth.base_stream`. Below: `hearth.transfer`.
"""
