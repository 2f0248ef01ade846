// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: the CUDA driver API from a kernel
