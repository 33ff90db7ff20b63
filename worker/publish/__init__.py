"""From an engine's cache to the index: keys held, and the stream that publishes them."""
