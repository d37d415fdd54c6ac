"""The command `hictl`, one file a command; nothing else imports it."""
