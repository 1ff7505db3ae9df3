"""Where records are stored: the contract (`protocol`), five implementations, and a mix of them."""
