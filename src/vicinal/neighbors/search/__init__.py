"""The k nearest rows of a support: one protocol, three engines."""
