"""Modules that both the front and the device processes use.

Above: `hearthd.front`, `hearthd.device`, `hearthd.confinement`. Imports none of them.
"""
