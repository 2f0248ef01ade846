"""The CPU backend: kernels compiled for the host behind the interface of `hearthd.device.backend`.

Imported only where a process is put together. Above: `hearthd.device.broker`. Below: `hearthd.device.channels`.
"""
