"""Foreign engines: their cache events, loads and facts, made into what `worker.publisher` takes."""
