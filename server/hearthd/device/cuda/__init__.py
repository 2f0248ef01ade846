"""The CUDA backend: CuPy, NVRTC, NCCL, NVTX and CUPTI behind the interface of `hearthd.device.backend`.

Imported only by the modules that assemble a process. Above: `hearthd.device.broker`. Below: `hearthd.device.channels`.
"""
