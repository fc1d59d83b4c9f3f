"""`envgym/Tau2Retail-v0`, `envgym/Tau2Airline-v0`, `envgym/Tau2Telecom-v0` and `envgym/Tau2Mock-v0`."""

from functools import partial

from envgym.environments.tau2.environment import Tau2

Tau2Retail = partial(Tau2, domain="retail")
Tau2Airline = partial(Tau2, domain="airline")
Tau2Telecom = partial(Tau2, domain="telecom")
Tau2Mock = partial(Tau2, domain="mock")

__all__ = ["Tau2", "Tau2Airline", "Tau2Mock", "Tau2Retail", "Tau2Telecom"]
