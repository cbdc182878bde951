"""Log-masses of pairs, tile by tile, in linear memory."""
