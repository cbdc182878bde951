"""Log-masses of pairs, tile by tile, in linear memory."""

from vicinal.neighbors.tiles.masses import LogMasses, log_masses

__all__ = ["LogMasses", "log_masses"]
