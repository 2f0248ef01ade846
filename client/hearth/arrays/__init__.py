"""Device arrays: views, copies to and from the host, dtype conversions, published and durable arrays.

Above: `hearth.kernels`. Below: `hearth.profiling`.
"""
