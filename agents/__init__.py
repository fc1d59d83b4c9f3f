"""The agents that come with envgym."""
