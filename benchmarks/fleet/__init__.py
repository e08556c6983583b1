"""Many machines on a statistical model of the internet: the real cores, with sizes and rates in place of toy sums."""
