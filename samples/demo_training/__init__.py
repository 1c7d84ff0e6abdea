"""Trains the checkpoint in samples/demo_model from made-up scenes, and measures it. See README.md beside this file."""
