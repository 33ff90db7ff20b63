"""What people see of the index: the ledger read, and summed up."""
