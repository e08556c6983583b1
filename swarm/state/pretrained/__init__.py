"""Imports pretrained models: Hugging Face folders and GGUF files. Nothing is executed."""
