"""NED: calibrated class probabilities from labeled neighbors (Karpusha 2020)."""
