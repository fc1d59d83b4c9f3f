"""Draws follow the distribution the parameters define, and the log-probabilities are of that distribution."""

import math

import numpy as np
import pytest
import torch

from envgym.engines.embedded.sampling import RowSampling, sample
from envgym.engines.embedded.sessions import UniformStream

# Ids 0..3 with probabilities .1, .4, .2, .3 at temperature 1.
LOGITS = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()


def draw(logits, uniforms, temperature=1.0, top_k=0, top_p=1.0):
    """Samples one row for each uniform number, all with the same parameters."""
    n = len(uniforms)
    rows = RowSampling(np.full(n, temperature), np.full(n, top_k), np.full(n, top_p))
    return sample(logits.expand(n, -1), torch.tensor(uniforms, dtype=torch.float32), rows)


def test_a_uniform_number_picks_the_id_whose_cumulative_probability_it_falls_under():
    ids, logprobs, kept = draw(LOGITS, [0.0, 0.09, 0.11, 0.49, 0.51, 0.69, 0.71, 0.999])
    assert ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert logprobs.tolist() == pytest.approx([math.log(p) for p in (0.1, 0.1, 0.4, 0.4, 0.2, 0.2, 0.3, 0.3)], abs=1e-6)
    assert kept is None


def test_temperature_divides_the_logits():
    # T = 0.5 squares the probabilities: .01, .16, .04, .09, over .30.
    ids, logprobs, _ = draw(LOGITS, [0.02, 0.04, 0.6, 0.71], temperature=0.5)
    assert ids.tolist() == [0, 1, 2, 3]
    assert logprobs.tolist() == pytest.approx([math.log(p / 0.30) for p in (0.01, 0.16, 0.04, 0.09)], abs=1e-6)


def test_greedy_takes_the_first_of_the_best_and_reports_temperature_1_whatever_is_drawn_or_cut():
    ids, logprobs, kept = draw(torch.tensor([0.0, 2.0, 2.0, 1.0]), [0.0, 0.999], temperature=0.0, top_k=1, top_p=0.1)
    assert ids.tolist() == [1, 1]
    want = 2 - math.log(1 + 2 * math.exp(2) + math.exp(1))
    assert logprobs.tolist() == pytest.approx([want, want], abs=1e-6)
    assert kept is None


def test_top_k_keeps_the_k_most_probable_the_first_of_equals_and_renormalises():
    ids, logprobs, kept = draw(LOGITS, [0.0, 0.57, 0.58, 0.999], top_k=2)
    assert kept.tolist() == [[False, True, False, True]] * 4
    assert ids.tolist() == [1, 1, 3, 3]
    assert logprobs.tolist() == pytest.approx([math.log(p / 0.7) for p in (0.4, 0.4, 0.3, 0.3)], abs=1e-6)
    assert draw(torch.zeros(4), [0.5], top_k=2)[2].tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(
    ("top_p", "support"),
    [(0.3, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.75, [1, 2, 3]), (0.95, [0, 1, 2, 3]), (1e-9, [1])],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(top_p, support):
    _, logprobs, kept = draw(LOGITS, [0.999], top_p=top_p)
    assert kept[0].nonzero().flatten().tolist() == support
    p = LOGITS.exp()
    assert logprobs.item() == pytest.approx(math.log(p[support[-1]] / p[support].sum()), abs=1e-6)


def test_top_p_counts_after_top_k_renormalised():
    # Of .4 and .3 the first alone has 4/7 = .571 of what top-k left.
    assert draw(LOGITS, [0.5], top_k=2, top_p=0.55)[2][0].nonzero().flatten().tolist() == [1]
    assert draw(LOGITS, [0.5], top_k=2, top_p=0.58)[2][0].nonzero().flatten().tolist() == [1, 3]


def test_rows_with_parameters_of_their_own_draw_what_they_would_alone():
    generator = torch.Generator().manual_seed(0)
    parameters = [*((t, 0, 1.0) for t in (1.0, 0.7, 0.0, 2.0)), (1.3, 5, 1.0), (1.0, 0, 0.6), (0.9, 7, 0.5)]
    logits, uniforms = torch.randn(7, 50, generator=generator) * 3, torch.rand(7, generator=generator)
    temperature, top_k, top_p = (np.array(column) for column in zip(*parameters, strict=True))
    ids, logprobs, kept = sample(logits, uniforms, RowSampling(temperature, top_k, top_p))
    for i, (t, k, p) in enumerate(parameters):
        alone = draw(logits[i], [uniforms[i].item()], t, k, p)
        assert ids[i] == alone[0][0] and logprobs[i] == alone[1][0]
        assert kept[i].tolist() == (alone[2][0].tolist() if alone[2] is not None else [True] * 50)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 0, 1.0), (1.5, 4, 1.0), (1.0, 0, 0.8), (1.2, 6, 0.7)]
)
def test_frequencies_over_a_grid_of_uniform_numbers_equal_the_reported_probabilities(temperature, top_k, top_p):
    logits = torch.randn(12, generator=torch.Generator().manual_seed(1)) * 2
    n = 20_000
    ids, logprobs, _ = draw(logits, ((np.arange(n) + 0.5) / n).tolist(), temperature, top_k, top_p)
    total = 0.0
    for token in ids.unique():
        chosen = ids == token
        assert logprobs[chosen].unique().numel() == 1
        probability = logprobs[chosen][0].exp().item()
        assert chosen.sum().item() / n == pytest.approx(probability, abs=2.0 / n)
        total += probability
    assert total == pytest.approx(1.0, abs=1e-3)


def test_no_uniform_number_picks_an_impossible_token_or_runs_out():
    logits = torch.tensor([1.0, 2.0, -math.inf, -200.0, -math.inf])
    almost = float(np.nextafter(np.float32(1), np.float32(0)))
    for u in (almost, 1.0):  # 1.0: a float64 number just below 1 may round to it
        ids, logprobs, _ = draw(logits, [u])
        assert ids.item() == 1 and logprobs.item() == pytest.approx(2 - math.log(math.exp(1) + math.exp(2)), abs=1e-6)
    assert draw(torch.tensor([-math.inf, -math.inf, 0.0, 0.0]), [0.0])[0].item() == 2


def test_a_large_vocabulary_keeps_log_probabilities_within_1e_4_of_float64():
    logits = torch.randn(150_000, generator=torch.Generator().manual_seed(2))
    ids, logprobs, _ = draw(logits, [0.1, 0.5, 0.9])
    want = logits.double().log_softmax(0)[ids]
    assert torch.allclose(logprobs.double(), want, atol=1e-4)


def test_not_a_number_shows_in_the_log_probability_instead_of_an_index_error():
    for bad in (math.nan, math.inf):
        assert not draw(torch.tensor([0.0, bad, 1.0]), [0.9])[1].isfinite().item()


def test_the_uniform_stream_is_a_function_of_seed_and_tokens_consumed():
    whole = UniformStream(7).peek(100).copy()
    stream, got = UniformStream(7), []
    for reserved, used in ((5, 3), (1, 1), (64, 10), (2, 0), (50, 50)):
        got += stream.peek(reserved)[:used].tolist()
        stream.consume(used)
    assert got == whole[: len(got)].tolist()
    assert whole.dtype == np.float32 and whole.min() >= 0 and whole.max() < 1
    assert UniformStream(8).peek(5).tolist() != whole[:5].tolist()
