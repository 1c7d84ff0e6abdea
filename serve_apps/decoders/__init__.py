"""Decoding of video and sound in processes that may die. Import the modules directly."""
