"""Warmroute: a prefix-cache-aware routing gateway for LLM inference on Kubernetes."""

__version__ = "0.1.0"
