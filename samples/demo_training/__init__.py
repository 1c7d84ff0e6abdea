"""Trains the checkpoint in samples/demo_model on made-up scenes, and measures it. README.md tells how."""
