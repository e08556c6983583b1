"""State on disk and in transfer: shards, checkpoints, the archive, transfer, export. Import the module you need."""
