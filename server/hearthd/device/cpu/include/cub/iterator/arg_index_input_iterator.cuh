// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: CUB's iterators (cub/iterator)
