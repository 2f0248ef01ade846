"""The CPU backend: kernels compiled for the host, behind the interface of `hearthd.device.backend`.

Imported only by the modules that assemble a process. Above: `hearthd.device.broker`. Below: `hearthd.device.channels`.
"""
