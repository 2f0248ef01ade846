"""Sections of the daemon's configuration.

Above: `hearthd.front.gpu`.
"""
