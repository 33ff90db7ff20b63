"""The indexer's process: the gRPC service, workers' sessions, the Redis ledger."""
