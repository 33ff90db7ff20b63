"""What operators ask of a gateway: explanations, decisions."""
