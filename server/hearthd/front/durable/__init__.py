"""The store of durable buffers on disk.

Above: `hearthd.front.collectives`. Below: `hearthd.front.supervisor`.
"""
