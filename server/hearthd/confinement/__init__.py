"""Confinement of a process by the kernel: seccomp filters, process attributes, and the features of the running kernel.

Covers restrictions that a process applies to itself; `hearthd.device.platform.sandbox` covers files (Landlock) and
resource limits. Shared code: the front queries the kernel's features, device processes and their brokers apply the
restrictions.
"""
