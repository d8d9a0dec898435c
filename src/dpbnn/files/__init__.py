"""Files that are written whole or not at all, folders that one worker owns, and strict JSON."""
