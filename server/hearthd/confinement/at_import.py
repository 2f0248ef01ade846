"""Closes the process that imports this module to others of its user, as `attributes.close_to_others` does.

The forkserver is a program of the standard library: what it is to do for itself, it does by importing a module.
"""

from hearthd.confinement.attributes import close_to_others

close_to_others()
