"""Groups of rows, one a file: `measure` runs in the parent, everything else in separate processes."""
