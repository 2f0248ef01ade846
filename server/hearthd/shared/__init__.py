"""Parts that the front and the device processes both use.

Above: `hearthd.front`, `hearthd.device`, `hearthd.confinement`. Imports none of them.
"""
