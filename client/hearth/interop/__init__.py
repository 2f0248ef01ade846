"""Exchange of arrays with other libraries: DLPack, the CUDA array interface, CUDA IPC.

Above: `hearth.arrays`. Below: `hearth.stream`.
"""
