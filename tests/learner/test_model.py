"""Actor and critic: the right tokens scored, the same in chunks, renormalised over supports."""

import weakref

import pytest
import torch
from tiny_learner import VOCAB, make_lm
from torch.utils._python_dispatch import TorchDispatchMode

from envgym.learner import model
from envgym.learner.batch import Supports
from envgym.learner.model import Actor, Critic

TOKENS = torch.randint(VOCAB, (3, 11), generator=torch.Generator().manual_seed(0))
ROWS, COLS = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([1, 10, 4, 5, 6])
KEPT = [
    [TOKENS[0, 1].item(), (TOKENS[0, 1].item() + 1) % VOCAB],
    [],  # no support recorded
    [(TOKENS[1, 4].item() + 2) % VOCAB, TOKENS[1, 4].item(), (TOKENS[1, 4].item() + 7) % VOCAB],
    [TOKENS[2, 5].item()],  # a support of one: certain
    [],
]
IDS = torch.tensor([i for ids in KEPT for i in ids], dtype=torch.int32)
SUPPORTS = Supports(IDS, torch.tensor([len(ids) for ids in KEPT]))


def score(temperature=0.7, supports=None, with_entropy=True, dtype=torch.float64):
    """Log-probabilities, entropies, and the gradient of a mixture of both."""
    lm = make_lm(dtype)
    actor = Actor(lm)
    logprobs, entropy = actor(TOKENS, ROWS, COLS, temperature=temperature, supports=supports, with_entropy=with_entropy)
    weights = torch.arange(1, 6, dtype=logprobs.dtype)
    (weights @ logprobs + weights @ entropy.square()).backward()
    return logprobs.detach(), entropy.detach(), {n: p.grad for n, p in lm.named_parameters()}


def by_hand(temperature=0.7, supports=None):
    with torch.no_grad():
        logits = make_lm()(TOKENS).logits / temperature
    logprobs, entropies = [], []
    for k, (row, col) in enumerate(zip(ROWS.tolist(), COLS.tolist(), strict=True)):
        kept = list(range(VOCAB))
        if supports is not None and KEPT[k]:
            kept = KEPT[k]
        distribution = logits[row, col - 1, kept].log_softmax(-1)
        logprobs.append(distribution[kept.index(TOKENS[row, col].item())].item())
        entropies.append(-(distribution.exp() * distribution).sum().item())
    return logprobs, entropies


@pytest.mark.parametrize("supports", [None, SUPPORTS], ids=["whole vocabulary", "supports"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_entropies_are_those_of_transformers(temperature, supports):
    logprobs, entropies, _ = score(temperature, supports)
    want_logprobs, want_entropies = by_hand(temperature, supports)
    assert logprobs.tolist() == pytest.approx(want_logprobs, abs=1e-9)
    assert entropies.tolist() == pytest.approx(want_entropies, abs=1e-9)


def test_a_support_raises_the_probability_of_what_it_keeps():
    free, kept = score()[0], score(supports=SUPPORTS)[0]
    assert (kept[[0, 2, 3]] > free[[0, 2, 3]] + 0.1).all()
    assert kept[3].item() == 0.0
    assert torch.equal(kept[[1, 4]], free[[1, 4]])


@pytest.mark.parametrize("supports", [None, SUPPORTS], ids=["whole vocabulary", "supports"])
@pytest.mark.parametrize("elements", [1, VOCAB, 2 * VOCAB])  # the first is less than one row of logits
def test_chunks_change_neither_scores_nor_gradients(monkeypatch, supports, elements):
    whole = score(supports=supports)
    monkeypatch.setattr(model, "HEAD_CHUNK_ELEMENTS", elements)
    calls = []
    original = model._score
    monkeypatch.setattr(model, "_score", lambda *args: (calls.append(len(args[1])), original(*args))[1])
    chunked = score(supports=supports)
    assert max(calls) == max(elements // VOCAB, 1) and len(calls) >= 3
    torch.testing.assert_close(chunked[0], whole[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(chunked[1], whole[1], rtol=0, atol=1e-12)
    for name, gradient in whole[2].items():
        assert gradient.isfinite().all(), name
        torch.testing.assert_close(chunked[2][name], gradient, rtol=1e-10, atol=1e-12, msg=name)


class LogitsWatch(TorchDispatchMode):
    """Rows of the largest tensor as wide as the vocabulary, and which of them are still alive."""

    def __init__(self):
        super().__init__()
        self.most_rows, self._seen = 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            wide = isinstance(tensor, torch.Tensor) and tensor.ndim >= 2 and tensor.shape[-1] in (VOCAB, VOCAB + 1)
            if wide and tuple(tensor.shape) != (32, VOCAB):  # the weights of the head, turned round
                self.most_rows = max(self.most_rows, tensor.numel() // tensor.shape[-1])
                self._seen.append(weakref.ref(tensor))
        return result

    def alive(self):
        return sum(reference() is not None for reference in self._seen)


@pytest.mark.parametrize("supports", [None, SUPPORTS], ids=["whole vocabulary", "supports"])
def test_no_logits_outlive_their_chunk_and_none_is_longer(monkeypatch, supports):
    def watched():
        actor, watch = Actor(make_lm()), LogitsWatch()
        with watch:
            logprobs, entropy = actor(TOKENS, ROWS, COLS, temperature=0.7, supports=supports)
            kept = watch.alive()
            (logprobs.sum() + entropy.sum()).backward()
        return watch.most_rows, kept

    rows, kept = watched()
    assert rows == len(ROWS) and kept > 0  # in one piece: what the backward pass needs is held, so this test can fail
    monkeypatch.setattr(model, "HEAD_CHUNK_ELEMENTS", 2 * VOCAB)
    assert watched() == (2, 0)


def test_without_entropy_the_logprobs_are_the_same_and_the_entropies_zero():
    logprobs, entropy, _ = score(with_entropy=False)
    assert torch.equal(logprobs, score()[0])
    assert (entropy == 0).all()


def test_half_precision_weights_give_scores_in_float32():
    with torch.no_grad():
        logprobs, _ = Actor(make_lm(torch.bfloat16))(TOKENS, ROWS, COLS, temperature=1.0)
        values = Critic(make_lm(torch.bfloat16).model, 32)(TOKENS)
    assert logprobs.dtype == values.dtype == torch.float32


def test_nothing_to_score_gives_empty_tensors_with_a_graph():
    lm = make_lm()
    none = torch.zeros(0, dtype=torch.int64)
    logprobs, entropy = Actor(lm)(TOKENS, none, none, temperature=1.0)
    assert logprobs.shape == entropy.shape == (0,)
    (logprobs.sum() + entropy.sum()).backward()
    assert all((p.grad == 0).all() for p in lm.parameters() if p.grad is not None)


def test_the_tokens_after_a_position_change_no_score_before_it():
    other = TOKENS.clone()
    other[:, 7:] = (other[:, 7:] + 5) % VOCAB
    early = COLS < 7
    with torch.no_grad():
        actor = Actor(make_lm())
        a = actor(TOKENS, ROWS[early], COLS[early], temperature=1.0)[0]
        b = actor(other, ROWS[early], COLS[early], temperature=1.0)[0]
    assert torch.equal(a, b)


def test_a_new_critic_values_everything_at_zero():
    with torch.no_grad():
        assert (Critic(make_lm().model, 32)(TOKENS) == 0).all()


def test_an_orthogonal_head_has_norm_one_depends_on_the_seed_and_leaves_the_global_random_state_alone():
    critic, state, heads = Critic(make_lm().model, 32), torch.get_rng_state(), []
    for seed in (3, 3, 4):
        critic.init_head("orthogonal", seed=seed)
        heads.append(critic.head.weight.detach().clone())
        assert heads[-1].norm().item() == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    critic.init_head("zero", seed=3)
    assert (critic.head.weight == 0).all()
