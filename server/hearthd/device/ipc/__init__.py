"""Published arrays and memory lent to other processes.

Above: `hearthd.device.durable.buffers`. Below: `hearthd.device.collectives.commands`.
"""
