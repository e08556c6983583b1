"""Pretrained models of others as our parameters: Hugging Face folders and GGUF files. Nothing is executed."""
