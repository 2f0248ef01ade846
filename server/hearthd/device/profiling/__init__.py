"""Profiles, traces and annotations of a session's work.

Above: `hearthd.device.memory`. Below: `hearthd.device.context`.
"""
