"""Media bytes to embeddings, in plain Python, numpy and torch.

Knows fetching, decoding, preprocessing, encoders, content keys and prompt expansion. Knows nothing of
HTTP servers, Ray or the decoder that consumes the embeddings.
"""
