"""The connection with one device process: frames, descriptors and chunks of memory.

Above: `hearthd.front.resources`. Below: `hearthd.front.sessions`.
"""
