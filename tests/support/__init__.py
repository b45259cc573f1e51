"""What several test modules share: oracles, cases, a browser."""
