"""Compiled modules, their functions and what is launched: arguments, graphs, prepared launches, dispatches.

Above: `hearth.base_device`. Below: `hearth.arrays`.
"""
