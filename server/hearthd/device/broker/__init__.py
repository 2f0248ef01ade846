"""Broker process of a device process: does the work for it that needs files, programs or names on the host.

A device process of the CPU backend runs kernels as native code, and is confined (`hearthd.device.platform.confine`).
Its broker is not confined: it is forked before the confinement, runs no kernel, and answers a few kinds of requests
over two sockets. It owns the compile workers, the compile cache and its key, the backend's own libraries, and the
exchange segments of collectives. Requests come from a process that may run code of any tenant: nothing in them is
executed or unpickled, and no request names a path.

Above: `hearthd.device.process`. Below: `hearthd.device.cuda` and `hearthd.device.cpu`.
"""
