"""Broker process of a device process: does for it what needs files, programs or names on the host.

A device process of the CPU backend runs kernels as native code, and is confined (`hearthd.device.platform.confine`).
Its broker is not: it is forked off before, runs no kernel, and answers a few requests over two sockets. It owns the
compile workers, the compile cache and its key, the backend's own libraries, and the exchange segments of collectives.
Requests come from a process that may run code of any tenant: nothing in them is run or unpickled, and no
request names a path.

Above: `hearthd.device.process`. Below: `hearthd.device.cuda` and `hearthd.device.cpu`.
"""
