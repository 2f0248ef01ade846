"""Memory budgets and pools, and work for when the device is idle.

Above: `hearthd.device.profiling`. Below: `hearthd.device.session`.
"""
