"""Copies between the host and the device, as a session asks for them.

Above: `hearthd.device.launch`. Below: `hearthd.device.memory`.
"""
