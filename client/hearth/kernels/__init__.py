"""Compiled modules, their functions, and everything that is launched: arguments, graphs, prepared launches, dispatches.

Above: `hearth.base_device`. Below: `hearth.arrays`.
"""
