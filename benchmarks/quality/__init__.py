"""How good are the answers? Heads and suspects against rivals on real rows, split by split."""
