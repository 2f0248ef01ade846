"""Confinement of a process by the kernel: seccomp filters, attributes of the process, and what this kernel offers.

Covers what a process gives up about itself; `hearthd.device.platform.sandbox` covers files (Landlock) and resource
limits. Neutral ground: the front asks what the kernel offers, device processes and their brokers apply it.
"""
