"""Profiles and traces of a session's work.

Above: `hearth.arrays`. Below: `hearth.interop`.
"""
