"""What a run gives away: posterior, guarantee and card."""
