// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: CUB's grid utilities (cub/grid)
