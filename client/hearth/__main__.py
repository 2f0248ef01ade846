"""`python -m hearth`: the command `hearth`, where it is not on the PATH."""

from hearth.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
