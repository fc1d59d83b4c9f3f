"""What a chat model's own library says it is sampled with, to compare a policy's record with."""

import torch


def largest_logprob_error(model, trajectory, *, temperature):
    """Largest difference between an episode's log-probabilities and those of a transformers model.

    Args:
        model: A transformers causal language model.
        trajectory: An episode of a policy that samples from the whole vocabulary.
        temperature: What it was sampled at.
    """
    ids, mask = trajectory.token_stream()[:2]
    recorded = [logprob for turn in trajectory.turns for logprob in turn.behavior_logprobs]
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, :-1].float() / temperature
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    expected = expected[torch.tensor([bool(action) for action in mask[1:]])]
    assert len(expected) == len(recorded)
    return (expected - torch.tensor(recorded)).abs().max().item()
