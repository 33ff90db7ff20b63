"""Foreign engines: their cache events, loads and facts, made into what `worker.publish.publisher` takes."""
