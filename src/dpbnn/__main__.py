"""``python -m dpbnn`` is ``dpbnn``."""

from dpbnn.cli.main import main

if __name__ == "__main__":
    main()
