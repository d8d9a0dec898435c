"""Files that are written whole or not at all, and folders that one worker has for itself."""
