"""Health and readings of the GPUs, from NVML.

Above: `hearthd.front.connections`. Below: `hearthd.front.opentelemetry`.
"""
