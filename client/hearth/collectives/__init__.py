"""Groups of devices and the collective operations on them.

Above: `hearth.aio`, `hearth.cli`. Below: `hearth.node`, `hearth.device`.
"""
