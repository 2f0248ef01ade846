"""Exchange of arrays with other libraries: DLPack, the CUDA array interface, CUDA IPC.

Above: `hearth.profiling`. Below: `hearth.interfaces`.
"""
