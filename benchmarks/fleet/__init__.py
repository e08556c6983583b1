"""Many machines on an internet made of statistics: the same cores, with sizes and rates in place of the toy's sums."""
