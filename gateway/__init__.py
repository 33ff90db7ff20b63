"""The data plane: entrypoint, prompts, routing, discovery, admin."""
