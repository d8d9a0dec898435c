"""Whether a model keeps records apart, and which engine is right for it: tried on synthetic records."""
