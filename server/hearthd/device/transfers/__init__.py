"""Copies between the host and the device, for sessions.

Above: `hearthd.device.launch`. Below: `hearthd.device.memory`.
"""
