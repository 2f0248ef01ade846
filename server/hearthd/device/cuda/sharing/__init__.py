"""CUDA memory that several processes map: published buffers, and the windows of copies between devices.

Owns the calls of CUDA's virtual memory management. Below `hearthd.device.cuda.server`.
"""
