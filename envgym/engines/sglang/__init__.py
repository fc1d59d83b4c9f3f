"""SGLang servers as the policy: client, servers and the weights on their way to them."""
