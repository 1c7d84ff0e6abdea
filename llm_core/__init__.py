"""Tokens and embeddings in, tokens out: the hybrid sliding-window MoE decoder and its engine."""
