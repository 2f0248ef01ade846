"""The command `hearth bench`: a node's figures beside the floors of this machine."""
