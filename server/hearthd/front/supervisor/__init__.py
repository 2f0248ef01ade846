"""Device processes: their start, supervision, restart and loss.

Above: `hearthd.front.durable`. Below: `hearthd.front.resources`.
"""
