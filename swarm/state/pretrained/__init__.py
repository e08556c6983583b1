"""Pretrained models of others, as this program's parameters: Hugging Face folders and GGUF files. Nothing is executed."""
