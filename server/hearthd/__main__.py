"""Entry point of `python -m hearthd`."""

from hearthd.cli.main import main

if __name__ == "__main__":
    main()
