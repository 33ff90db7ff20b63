"""The central KV-cache index: key space, Redis ledger, gRPC service, in-memory mirror."""
