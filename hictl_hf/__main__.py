"""`python -m hictl_hf COMMAND` is `hictl COMMAND`, for launchers: `accelerate launch -m hictl_hf embed ...`."""

from .cli.main import main

if __name__ == "__main__":
    main()
