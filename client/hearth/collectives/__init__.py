"""Groups of devices, and the collective operations on them.

Above: `hearth.blocking` and `hearth.aio`. Below: `hearth.base_node`.
"""
