"""The CUDA backend: CuPy, NVRTC, NCCL, NVTX and CUPTI behind the interface of `hearthd.device.backend`.

Imported only where a process is put together. Above: `hearthd.device.broker`. Below: `hearthd.device.channels`.
"""
