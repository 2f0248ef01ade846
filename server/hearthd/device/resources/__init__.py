"""Memory budgets and pools, and work that runs while the device is idle.

Above: `hearthd.device.operation` and `hearthd.device.printf_capture`. Below: `hearthd.device.session`.
"""
