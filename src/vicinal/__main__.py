"""``python -m vicinal``: the command line where no script is on the path."""

from __future__ import annotations

from vicinal.cli.__main__ import entry

if __name__ == "__main__":
    entry()
