"""The embedded engine: generation with a cache over slots, in this process."""
