"""Questions to private data apart from gradients, each bought with a permit."""
