"""Where workers are found."""
