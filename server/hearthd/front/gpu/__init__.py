"""Health and readings of the GPUs, from NVML.

Above: `hearthd.front.sessions`. Below: `hearthd.front.config`.
"""
