"""The command `hictl`: one module per sub-command; other packages do not import it."""
