"""A paged prefix-caching engine in PyTorch, in the words of vLLM's block pool."""
