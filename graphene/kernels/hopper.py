"""What limits every kernel for sm_90a: shared memory, lines that TMA swizzles, numbers of tiles in 32 bits."""

__all__ = ["ALIGNED_BYTES", "LINE_BYTES", "MOST_TILES", "SHARED_BYTES"]

SHARED_BYTES = 227 * 1024  # of a block
LINE_BYTES = 128  # of a tile in shared memory, which TMA swizzles
ALIGNED_BYTES = 1024  # of swizzled tiles
MOST_TILES = 2**31 - 2**16  # no sum of a tile and a grid is larger than 32 bits hold
