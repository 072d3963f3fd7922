"""``python -m tacitly``: the command."""

from tacitly.cli.main import main

if __name__ == "__main__":
    main()
