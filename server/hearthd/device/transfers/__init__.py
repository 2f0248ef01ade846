"""Copies between the host and the device, and the state of each transfer.

Above: `hearthd.device.launch`. Below: `hearthd.device.memory`.
"""
