"""One group of rows a file: `measure` runs in the parent, everything else in processes of its own."""
