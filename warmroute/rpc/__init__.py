"""gRPC between the parts: TLS, certificates, shared tokens."""
