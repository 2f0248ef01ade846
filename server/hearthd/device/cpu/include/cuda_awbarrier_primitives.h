// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: asynchronous barriers (cuda_awbarrier_primitives.h)
