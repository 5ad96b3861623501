"""``python -m scale0_core`` is the command ``scale0``."""

from scale0_core.cli import main

if __name__ == "__main__":
    main()
