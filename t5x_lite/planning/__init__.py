"""Plan runs for devices that this machine does not have, and diagnose the machine itself."""
