"""Reading plain code: dimensions as named axes, scalars, index arithmetic, masks."""
