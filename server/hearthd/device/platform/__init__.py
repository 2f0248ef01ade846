"""Event loop, log, sandbox and counters of a device process: the lowest layer of `hearthd.device`."""
