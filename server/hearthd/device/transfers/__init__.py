"""Copies between the host and the device, for the sessions.

Above: `hearthd.device.launch`. Below: `hearthd.device.memory`.
"""
