"""Device arrays: views, copies to and from the host, casts, published and durable arrays.

Above: `hearth.kernels`. Below: `hearth.profiling`.
"""
