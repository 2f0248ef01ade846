"""Commands that the device-handle thread executes inline, without a queue.

Above: `hearthd.device.channels`. Below: `hearthd.device.scheduler`.
"""
