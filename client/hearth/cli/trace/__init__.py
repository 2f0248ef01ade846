"""The command `hearth trace`: a trace of a program or of a session."""
