"""Groups of devices and the collective operations on them.

Above: `hearth.dask`. Below: `hearth.node`.
"""
