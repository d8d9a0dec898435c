"""What takes too long for every change: `make test-long` runs it, and results.md says what came out."""
