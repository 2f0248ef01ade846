"""The device process: its main loop on the device-handle thread, the executor of commands, and the fatal exit.

The top layer of `hearthd.device`. Below: `hearthd.device.broker`.
"""
