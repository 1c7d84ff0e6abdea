"""From logits to tokens, and from tokens to text with stop strings."""
