"""Parts that the front and the device processes both use.

Above: `hearthd.front`, `hearthd.device`. Imports neither.
"""
