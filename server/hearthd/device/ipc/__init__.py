"""Published arrays and memory lent to other processes.

Above: `hearthd.device.durable`. Below: `hearthd.device.collectives`.
"""
