"""The command `hearth doctor`: checks of this client, the network and a daemon."""
