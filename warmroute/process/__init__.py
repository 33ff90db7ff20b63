"""What every part is as a process: life cycle, admin server, logs, metrics, addresses."""
