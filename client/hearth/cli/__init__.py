"""The `hearth` command. Nothing of it is imported by `import hearth`, and it needs nothing that the client does not.

The top layer of `hearth`. Below: `hearth.aio`.
"""
