"""One embedding store for the cluster: embeddings in Ray's object store, a directory actor that knows where."""
