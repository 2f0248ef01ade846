"""Text for the terminal: tables, units, messages."""
