"""The environments that come with envgym."""
