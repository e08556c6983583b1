"""The coordinator: a light CPU process that supplies tokens, decides steps and keeps the run's history."""
