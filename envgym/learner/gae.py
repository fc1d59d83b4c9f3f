"""Generalised advantage estimation over action tokens, over turns, and over both; and where a step's reward goes.

Pure functions of [B, T] tensors, one trajectory per row. Only action tokens take part: rows are first compacted to
them, so nothing that padding and observation tokens hold (NaN and inf too) can change a result. Positions outside the
mask get 0. Sums are accumulated in float64 and returned in the dtype of the input; no gradient flows. An example:

    token        P   P   a   a   O   O   a   pad        P prompt, O observation, a sampled by the policy
    action_mask  0   0   1   1   0   0   1   0
    turn_ids     -   -   0   0   -   -   1   -
    values       -   -  V_0 V_1  -   -  V_2  -          V_k: state *before* action token k
    rewards      -   -   0  r_0  -   -  r_1  -          reward of step n on the last action token of turn n

Folded context: concatenate the segments of a trajectory on the token axis into one row. The last action token of a
segment then bootstraps from the first action state of the next; what a segment repeats is skipped like an observation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from envgym.learner.losses import check_token_tensors


@torch.no_grad()
def gae_advantages(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    bootstrap_value: Tensor,
    *,
    discount: float | Tensor,
    lam: float | Tensor,
) -> Tensor:
    """The advantage of each action token.

        delta_k = r_k + discount_k * V_{k+1} - V_k          V_K = bootstrap_value
        A_k     = delta_k + discount_k * lam_k * A_{k+1}    A_K = 0

    k runs over action tokens only: nothing is discounted or decayed across observation tokens. lam = 0 is the one-step
    error, lam = 1 the Monte-Carlo return (bootstrap included) minus V. Source: Schulman et al., 1506.02438, eq. 16.

    Args:
        rewards: float32 or float64 [B, T], read on action tokens.
        values: same dtype [B, T]; V of the state before each action token (the critic's output one position earlier).
        action_mask: bool [B, T].
        bootstrap_value: float [B]; V of the state after the last action and the observation it caused; 0 if and only if
            the episode terminated.
        discount: in [0, 1]; a float, [B], or [B, T]. `gamma ** turn_steps(...)` acts between turns only.
        lam: in [0, 1]; a float, [B] (`length_adaptive_lambda` makes one), or [B, T].

    Returns:
        [B, T], dtype of `rewards`; 0 outside the mask and in rows without action tokens.

    Raises:
        ValueError: wrong rank, dtype or shape; discount or lam outside [0, 1] on an action token.
    """
    rows, cols, r, v = _compacted(rewards, values, action_mask, bootstrap_value)
    discounts = _coefficient(discount, "discount", action_mask)[rows, cols]
    lams = _coefficient(lam, "lam", action_mask)[rows, cols]
    return _placed(_gae(r, v, bootstrap_value.double(), rows, discounts, lams), rows, cols, rewards)


@torch.no_grad()
def decoupled_gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    bootstrap_value: Tensor,
    *,
    discount: float | Tensor,
    lam_policy: float | Tensor,
    lam_value: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    """(advantages, value_targets): policy and critic each with its own lambda.

        advantages = A(lam_policy)          value_targets = A(lam_value) + V

    With lam_value = 1 the critic regresses on the unbiased return while the policy keeps a low-variance advantage.
    Source: VC-PPO, 2503.01491, section 4.2. Arguments, shapes and errors as in `gae_advantages`; targets are 0 outside
    the mask too.
    """
    advantages = gae_advantages(rewards, values, action_mask, bootstrap_value, discount=discount, lam=lam_policy)
    # In float64 to the end: rounding A before V is added would lose digits when V is large against A.
    exact = values.double()
    returns = exact + gae_advantages(
        rewards.double(), exact, action_mask, bootstrap_value, discount=discount, lam=lam_value
    )
    return advantages, torch.where(action_mask, returns, 0.0).to(rewards.dtype)


def length_adaptive_lambda(num_action_tokens: Tensor, *, alpha: float, lambda_min: float) -> Tensor:
    """The policy's lambda for trajectories of these lengths: clamp(1 - 1 / (alpha * l), lambda_min, 1).

    The sum of the lambda-weights, 1 / (1 - lambda), then grows with the length l as alpha * l. For l <= 1 / alpha the
    raw formula is <= 0, hence the floor. Source: VAPO, 2504.05118, section 4.2 (alpha = .05).

    Args:
        num_action_tokens: [B], integers (or floats) >= 0; action tokens of the whole trajectory.
        alpha: > 0.
        lambda_min: in [0, 1].

    Returns:
        [B]; the dtype of the input if it is floating, else torch's default dtype.

    Raises:
        ValueError: wrong rank, a negative length, alpha or lambda_min out of range.
    """
    if num_action_tokens.ndim != 1 or bool((num_action_tokens < 0).any()):
        raise ValueError(f"num_action_tokens must be [B] and >= 0, got shape {list(num_action_tokens.shape)}.")
    if not alpha > 0:
        raise ValueError(f"alpha must be > 0 (0.05 is usual), got {alpha}.")
    _check_unit_interval(lambda_min=lambda_min)
    floating = num_action_tokens.is_floating_point()
    dtype = num_action_tokens.dtype if floating else torch.get_default_dtype()
    return (1.0 - 1.0 / (alpha * num_action_tokens.double())).clamp(lambda_min, 1.0).to(dtype)


@torch.no_grad()
def turn_advantages(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    turn_ids: Tensor,
    bootstrap_value: Tensor,
    *,
    gamma: float,
    lam: float,
    steps: Tensor | None = None,
) -> Tensor:
    """The advantage of each turn, taken as one decision, on each of its action tokens.

        delta_n = R_n + gamma^s * V_{n+1} - V_n        A_n = delta_n + gamma^s * lam * A_{n+1}

    n runs over the turns that have action tokens, whether rewarded or not. R_n is the sum of the rewards on the turn's
    action tokens (the step's reward, plus KL shaping if any); V_n is V at its first action token; s is the number of
    environment steps until the next decision: 1 unless turns without action tokens lie between.

    Args:
        rewards, values, action_mask, bootstrap_value: as in `gae_advantages`.
        turn_ids: integer [B, T]; index of the turn of each action token, not decreasing along a row.
        gamma, lam: in [0, 1], per turn.
        steps: int64 [B, T], what `turn_steps` gives, where it is known already; `turn_ids` is then not read. Default:
            that of `turn_ids`, with no turn cut and none after the last action token.

    Returns:
        [B, T], dtype of `rewards`.

    Raises:
        ValueError: as `gae_advantages` and `turn_steps`.
    """
    rows, cols, r, v = _compacted(rewards, values, action_mask, bootstrap_value)
    _check_unit_interval(gamma=gamma, lam=lam)
    flat, starts, ends = _turns(turn_steps(turn_ids, action_mask) if steps is None else steps, rows, cols)
    decision = starts.long().cumsum(0) - 1
    turn_rewards = r.new_zeros(int(starts.sum())).index_add_(0, decision, r)
    by_turn = _gae(turn_rewards, v[starts], bootstrap_value.double(), rows[starts], gamma ** flat[ends], lam)
    return _placed(by_turn[decision], rows, cols, rewards)


@torch.no_grad()
def bilevel_advantages(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    turn_ids: Tensor,
    bootstrap_value: Tensor,
    *,
    gamma_turn: float,
    lam_turn: float,
    gamma_token: float,
    lam_token: float,
    steps: Tensor | None = None,
) -> Tensor:
    """Turn-level advantages, spread over the tokens of each turn by a second, token-level pass.

        turns:   A_n as in `turn_advantages` with gamma_turn, lam_turn; R_n = reward on the last action token of turn n
        tokens:  A_k = A_n                                                       on the last action token of turn n
                 A_k = r_k + gamma_token * V_{k+1} - V_k + gamma_token * lam_token * A_{k+1}   on the others

    A reward on an inner token (KL shaping) enters at the token level only, so that no reward is counted twice. With one
    action token per turn this is `turn_advantages`, whose arguments, shapes and errors it has. Source: VAGEN,
    2510.16907, bi-level GAE.
    """
    rows, cols, r, v = _compacted(rewards, values, action_mask, bootstrap_value)
    _check_unit_interval(gamma_turn=gamma_turn, lam_turn=lam_turn, gamma_token=gamma_token, lam_token=lam_token)
    flat, starts, ends = _turns(turn_steps(turn_ids, action_mask) if steps is None else steps, rows, cols)
    by_turn = _gae(r[ends], v[starts], bootstrap_value.double(), rows[starts], gamma_turn ** flat[ends], lam_turn)
    # A turn's last token restarts the recursion at A_n: its delta is A_n and nothing flows in from the next turn.
    delta = r + gamma_token * v.roll(-1) - v
    delta[ends] = by_turn
    carry = torch.full_like(delta, gamma_token * lam_token).masked_fill(ends, 0.0)
    return _placed(_reverse_scan(delta, carry, rows), rows, cols, rewards)


@torch.no_grad()
def turn_steps(
    turn_ids: Tensor, action_mask: Tensor, *, num_turns: Tensor | None = None, mid_turn_cut: Tensor | None = None
) -> Tensor:
    """The environment steps completed between each action token and the next one, or the state to bootstrap from.

        turn_{k+1} - turn_k                     before another action token: 0 inside a turn, 1 between neighbouring
                                                turns, 2 across a turn without action tokens
        num_turns - turn_k - mid_turn_cut       on the last action token: 1, or 0 if the turn was cut in mid-generation,
                                                since its step never completed

    `gamma ** turn_steps(...)` is the `discount` that spares wordy turns: it acts once per environment step.

    Args:
        turn_ids: integer [B, T]; index (from 0) of the turn of each action token, not decreasing along a row.
        action_mask: bool [B, T].
        num_turns: integer [B]; turns begun, including those without action tokens and the one that was cut. Default:
            the turn of the last action token is the last turn.
        mid_turn_cut: bool [B]; the last turn was cut in mid-generation (RESPONSE_LENGTH). Default: none was.

    Returns:
        int64 [B, T]; 0 outside the mask.

    Raises:
        ValueError: wrong rank, dtype or shape; turn ids negative, decreasing, or >= num_turns.
    """
    check_token_tensors(action_mask, "action_mask")
    if turn_ids.shape != action_mask.shape or turn_ids.is_floating_point() or turn_ids.dtype == torch.bool:
        raise ValueError(
            f"turn_ids must be integers {list(action_mask.shape)}, got {turn_ids.dtype} {list(turn_ids.shape)}."
        )
    batch = action_mask.shape[:1]
    if mid_turn_cut is not None and (mid_turn_cut.shape != batch or mid_turn_cut.dtype != torch.bool):
        raise ValueError(f"mid_turn_cut must be bool [B], got {mid_turn_cut.dtype} {list(mid_turn_cut.shape)}.")
    if num_turns is not None and (num_turns.shape != batch or num_turns.is_floating_point()):
        raise ValueError(f"num_turns must be integer [B], got {num_turns.dtype} {list(num_turns.shape)}.")
    rows, cols = action_mask.nonzero(as_tuple=True)
    ids = turn_ids[rows, cols].long()
    after = ids + 1 if num_turns is None else num_turns.to(ids)[rows]
    if bool(((ids < 0) | (ids >= after)).any()):
        raise ValueError("turn_ids must lie in [0, number of turns) on action tokens.")
    if mid_turn_cut is not None:
        after = after - mid_turn_cut.to(ids)[rows]
    _, last = _row_edges(rows)
    steps = torch.where(last, after, ids.roll(-1)) - ids
    if bool((steps < 0).any()):
        raise ValueError("turn_ids must not decrease along the action tokens of a row.")
    return _placed(steps, rows, cols, torch.zeros_like(action_mask, dtype=torch.int64))


@torch.no_grad()
def place_rewards(step_rewards: Tensor, turn_ids: Tensor, action_mask: Tensor) -> Tensor:
    """Token-level rewards: the reward of environment step n on the last action token of turn n.

    A turn without action tokens gives its reward to the last action token before it or, where there is none, to the
    first one after it. Rewards that meet on one token add up. Nothing is dropped: the sum of each row is asserted.

    Args:
        step_rewards: float32 or float64 [B, N]; N the largest number of turns, unused entries 0.
        turn_ids: integer [B, T]; index in [0, N) of the turn of each action token, not decreasing along a row.
        action_mask: bool [B, T].

    Returns:
        [B, T], dtype of `step_rewards`; nonzero only on action tokens.

    Raises:
        ValueError: wrong rank, dtype or shape; a turn id outside [0, N); a reward that is not finite; a row that has a
            nonzero reward and no action token to put it on.
    """
    check_token_tensors(action_mask, "action_mask")
    if step_rewards.ndim != 2 or step_rewards.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"step_rewards must be float32 or float64 [B, N], got {step_rewards.dtype} {list(step_rewards.shape)}."
        )
    batch, num_steps = step_rewards.shape
    if batch != action_mask.shape[0]:
        raise ValueError(f"step_rewards has {batch} rows, action_mask has {action_mask.shape[0]}; they must match.")
    if not bool(step_rewards.isfinite().all()):
        raise ValueError("step_rewards must be finite, 0 in unused entries. Leave failed episodes out of the batch.")
    turn_steps(turn_ids, action_mask, num_turns=torch.full((batch,), num_steps, device=turn_ids.device))
    orphaned = ~action_mask.any(dim=1) & (step_rewards != 0).any(dim=1)
    if bool(orphaned.any()):
        raise ValueError(
            f"Rows {orphaned.nonzero().flatten().tolist()} have a reward but no action token to put it on. "
            "Leave trajectories in which the policy sampled nothing out of the batch."
        )
    rows, cols = action_mask.nonzero(as_tuple=True)
    counts = action_mask.sum(dim=1)
    first = (counts.cumsum(0) - counts).repeat_interleave(num_steps)
    # All turns of all rows numbered in one line: the last action token up to a turn, or the first one of its row.
    turns = torch.arange(batch * num_steps, device=rows.device)
    target = torch.searchsorted(rows * num_steps + turn_ids[rows, cols], turns, right=True) - 1
    exact = step_rewards.double().flatten()
    # One place more, for the zeros of rows without action tokens behind the last one that has some.
    flat = exact.new_zeros(len(rows) + 1).index_add_(0, torch.maximum(target, first), exact)
    out = _placed(flat[:-1], rows, cols, torch.zeros_like(action_mask, dtype=torch.float64))
    lost = out.sum(dim=1) - step_rewards.double().sum(dim=1)
    assert bool((lost.abs() <= 1e-9 * step_rewards.double().abs().sum(dim=1)).all()), "rewards were lost on the way"
    return out.to(step_rewards.dtype)


def _compacted(
    rewards: Tensor, values: Tensor, action_mask: Tensor, bootstrap_value: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows and columns of the action tokens, their rewards and values in float64 [M]; what all estimators check."""
    check_token_tensors(action_mask, "action_mask", rewards=rewards, values=values)
    if values.dtype != rewards.dtype:
        raise ValueError(f"rewards and values must have one dtype, got {rewards.dtype} and {values.dtype}.")
    if bootstrap_value.shape != action_mask.shape[:1] or not bootstrap_value.is_floating_point():
        raise ValueError(
            f"bootstrap_value must be floating [B] = [{action_mask.shape[0]}], got {bootstrap_value.dtype} "
            f"{list(bootstrap_value.shape)}. It holds one value per trajectory, 0 for those that terminated."
        )
    rows, cols = action_mask.nonzero(as_tuple=True)
    return rows, cols, rewards[rows, cols].double(), values[rows, cols].double()


def _check_unit_interval(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{name} must lie in [0, 1], got {number}.")


def _coefficient(given: float | Tensor, name: str, action_mask: Tensor) -> Tensor:
    """A float, [B] or [B, T] coefficient as float64 [B, T]."""
    tensor = torch.as_tensor(given, dtype=torch.float64, device=action_mask.device)
    if tensor.ndim > 2 or tensor.shape != action_mask.shape[: tensor.ndim]:
        raise ValueError(
            f"{name} must be a float, [B] or [B, T] with [B, T] = {list(action_mask.shape)}, got {list(tensor.shape)}."
        )
    tensor = (tensor[:, None] if tensor.ndim == 1 else tensor).expand(action_mask.shape)
    if not bool(((tensor >= 0) & (tensor <= 1) | ~action_mask).all()):
        raise ValueError(f"{name} must lie in [0, 1] on every action token.")
    return tensor


def _turns(steps: Tensor, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per action token [M]: steps until the next one (float64), first of its turn?, last of its turn?"""
    flat = steps[rows, cols]
    first, last = _row_edges(rows)
    ends = last | (flat > 0)
    return flat.double(), first | ends.roll(1), ends


def _row_edges(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each entry is the first, and the last, of its row; `rows` [M] is sorted."""
    first, last = rows != rows.roll(1), rows != rows.roll(-1)
    first[:1], last[-1:] = True, True
    return first, last


def _gae(
    rewards: Tensor, values: Tensor, bootstrap: Tensor, rows: Tensor, discount: Tensor, lam: Tensor | float
) -> Tensor:
    """The recurrence on flat float64 [M] tensors of all rows end to end; `rows` is sorted, bootstrap is [B]."""
    _, last = _row_edges(rows)
    delta = rewards + discount * torch.where(last, bootstrap[rows], values.roll(-1)) - values
    return _reverse_scan(delta, discount * lam, rows)


def _reverse_scan(delta: Tensor, carry: Tensor, rows: Tensor) -> Tensor:
    """A_k = delta_k + carry_k * A_{k+1} inside each row, flat float64 [M]; nothing crosses from row to row.

    The loop runs over the largest number of entries in a row (not over T), all rows at once.
    """
    if not rows.numel():
        return delta
    _, row_index, counts = rows.unique_consecutive(return_inverse=True, return_counts=True)
    slots = torch.arange(rows.numel(), device=rows.device) - (counts.cumsum(0) - counts)[row_index]
    shape = (int(counts.max()), counts.numel())
    table, factors = delta.new_zeros(shape), delta.new_zeros(shape)
    table[slots, row_index] = delta
    factors[slots, row_index] = carry
    steps, carries = table.unbind(0), factors.unbind(0)
    for k in range(shape[0] - 2, -1, -1):
        steps[k].addcmul_(carries[k], steps[k + 1])
    return table[slots, row_index]


def _placed(flat: Tensor, rows: Tensor, cols: Tensor, like: Tensor) -> Tensor:
    """Flat [M] values back on their action tokens, zeros elsewhere, shape and dtype of `like`."""
    out = torch.zeros_like(like)
    out[rows, cols] = flat.to(like.dtype)
    return out
