"""Module whose import closes the process to other processes of its user, as `attributes.close_to_others` does.

The forkserver is a program of the standard library, which can be made to run code only by importing a module.
"""

from hearthd.confinement.attributes import close_to_others

close_to_others()
