"""What released networks say about new records."""
