"""Profiles, traces and annotations of a session's work.

Above: `hearthd.device.memory.commands`. Below: `hearthd.device.backend.resources`.
"""
