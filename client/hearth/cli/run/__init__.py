"""The command `hearth run`: one kernel from a file, with arrays from the command line."""
