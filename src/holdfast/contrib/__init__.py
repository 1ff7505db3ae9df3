"""Programs and names on top of the public API; the layers below know nothing of them."""
