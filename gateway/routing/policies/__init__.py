"""The policies: pure functions from facts to a pick, one file each."""
