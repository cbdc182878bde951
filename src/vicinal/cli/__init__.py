"""From the shell: one file per command; ``__main__`` is the table of them."""
