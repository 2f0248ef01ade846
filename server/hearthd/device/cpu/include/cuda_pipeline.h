// Refused by name: see unsupported.py.
#error HEARTH-UNSUPPORTED: asynchronous copies (cuda_pipeline.h)
