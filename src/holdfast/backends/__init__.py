"""Which URL means which backend. One dict, imported on use."""
