"""`python -m hearthd`."""

from hearthd.cli import main

if __name__ == "__main__":
    main()
