"""What runs beside a GPU: the built-in engine, the engine adapters, the publisher."""
