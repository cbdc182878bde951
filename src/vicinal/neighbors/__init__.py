"""Who is near whom, and how much: distances, masses, temperature, search."""

from vicinal.neighbors.distances import METRICS, neighbor_distances, pairwise_distances, unit_rows
from vicinal.neighbors.graph import NeighborGraph
from vicinal.neighbors.mass import (
    class_log_mass,
    dudani,
    exponential,
    gou,
    log_mass,
    own_log_mass,
    uniform,
)
from vicinal.neighbors.neighborhood import Neighborhood
from vicinal.neighbors.search import ExactSearch, Search, leave_one_out, make_search
from vicinal.neighbors.surprise import TemperatureFit, fit_temperature
from vicinal.neighbors.temperature import chance_level, optimal_temperature, snnl_profile
from vicinal.neighbors.tiles.masses import LogMasses, log_masses

__all__ = ["METRICS"]
__all__ += ["neighbor_distances", "pairwise_distances", "unit_rows"]
__all__ += ["dudani", "exponential", "gou", "uniform"]
__all__ += ["class_log_mass", "log_mass", "own_log_mass"]
__all__ += ["ExactSearch", "Neighborhood", "Search", "make_search"]
__all__ += ["NeighborGraph", "leave_one_out"]
__all__ += ["TemperatureFit", "chance_level", "fit_temperature"]
__all__ += ["optimal_temperature", "snnl_profile"]
__all__ += ["LogMasses", "log_masses"]
