// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: tensor cores (mma.h)
