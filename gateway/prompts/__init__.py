"""From a request body to token ids and index keys."""
