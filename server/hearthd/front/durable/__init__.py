"""The store of durable buffers: copies in memory files that outlive device processes.

Above: `hearthd.front.collectives`. Below: `hearthd.front.supervisor`.
"""
