"""`python -m gradproof_probe REQUEST`: see `gradproof_probe.main`."""

from gradproof_probe.main import main

main()
