"""Who is near whom, and how much: distances, masses, temperature, search."""

from vicinal.neighbors.distances import METRICS, neighbor_distances, pairwise_distances, unit_rows

__all__ = ["METRICS"]
__all__ += ["neighbor_distances", "pairwise_distances", "unit_rows"]
