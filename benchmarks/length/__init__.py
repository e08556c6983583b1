"""What compression costs over a long run: training in one process, on a GPU as replayed graphs of whole steps."""
