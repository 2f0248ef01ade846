"""The command `hearth top`: a node's sessions and devices, refreshed."""
