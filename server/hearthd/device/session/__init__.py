"""A session's objects in the device process: handles, buffers, modules, streams.

Above: `hearthd.device.resources`. Below: `hearthd.device.flows`.
"""
