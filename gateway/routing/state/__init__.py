"""What a gateway knows of a pool's workers beyond the index: bookings, predictions, rates, sessions, other gateways."""
