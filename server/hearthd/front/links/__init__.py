"""The connection with one device process: frames, descriptors, and memory for chunks.

Above: `hearthd.front.resources`. Below: `hearthd.front.sessions`.
"""
