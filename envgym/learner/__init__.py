"""The actor-critic learner: advantages, losses, sharded models and the update loop."""
