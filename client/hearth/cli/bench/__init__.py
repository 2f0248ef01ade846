"""The command `hearth bench`: measures a node and, for comparison, the floors of this machine."""
