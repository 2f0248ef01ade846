// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: asynchronous copies (cooperative_groups/memcpy_async.h)
