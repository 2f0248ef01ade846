// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: cub::BlockRunLengthDecode
