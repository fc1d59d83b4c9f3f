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

from envgym.learner.losses import check_integers, check_token_tensors


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
    r, v, bootstrap = _checked(rewards, values, action_mask, bootstrap_value)
    discounts, lams = _coefficient(discount, "discount", action_mask), _coefficient(lam, "lam", action_mask)
    return _gae(r, v, bootstrap, action_mask, discounts, lams).to(rewards.dtype)


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
    Source: VC-PPO, 2503.01491, section 4.2. Arguments, shapes and errors as in `gae_advantages`.
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
        rewards, values, action_mask, turn_ids, bootstrap_value: as in `gae_advantages` and `turn_steps`.
        gamma, lam: in [0, 1], per turn.
        steps: int64 [B, T], what `turn_steps` gives, where it is known already; `turn_ids` is then not read. Default:
            that of `turn_ids`, with no turn cut and none after the last action token.

    Returns, Raises: as `gae_advantages`, and as `turn_steps`.
    """
    r, v, bootstrap = _checked(rewards, values, action_mask, bootstrap_value)
    _check_unit_interval(gamma=gamma, lam=lam)
    steps, first, last = _turns(turn_steps(turn_ids, action_mask) if steps is None else steps, action_mask)
    turn = first[action_mask].cumsum(0) - 1  # of each action token, counted through the batch
    summed = r.new_zeros(int(first.sum())).index_add_(0, turn, r[action_mask])
    by_turn = _gae(_on(first, summed), v, bootstrap, first, _on(first, gamma ** steps[last]), lam)
    return _on(action_mask, by_turn[first][turn]).to(rewards.dtype)


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
    r, v, bootstrap = _checked(rewards, values, action_mask, bootstrap_value)
    _check_unit_interval(gamma_turn=gamma_turn, lam_turn=lam_turn, gamma_token=gamma_token, lam_token=lam_token)
    steps, first, last = _turns(turn_steps(turn_ids, action_mask) if steps is None else steps, action_mask)
    by_turn = _gae(_on(first, r[last]), v, bootstrap, first, _on(first, gamma_turn ** steps[last]), lam_turn)
    # A turn's last token restarts the recursion at A_n: its delta is A_n and nothing flows in from the next turn.
    delta = r + gamma_token * _following(v, action_mask, bootstrap) - v
    delta[last] = by_turn[first]
    carry = torch.full_like(delta, gamma_token * lam_token).masked_fill(last, 0.0)
    return _reverse_scan(delta, carry, action_mask).to(rewards.dtype)


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
    batch = action_mask.shape[:1]
    check_integers("turn_ids", turn_ids, action_mask.shape)
    if num_turns is not None:
        check_integers("num_turns", num_turns, batch)
    if mid_turn_cut is not None and (mid_turn_cut.shape != batch or mid_turn_cut.dtype != torch.bool):
        raise ValueError(f"mid_turn_cut must be bool [B], got {mid_turn_cut.dtype} {list(mid_turn_cut.shape)}.")
    ids = torch.where(action_mask, turn_ids, 0).long()
    after = ids + 1 if num_turns is None else num_turns.to(ids)[:, None]
    if bool((action_mask & ((ids < 0) | (ids >= after))).any()):
        raise ValueError("turn_ids must lie in [0, number of turns) on action tokens.")
    if mid_turn_cut is not None:
        after = after - mid_turn_cut.to(ids)[:, None]
    steps = torch.where(action_mask, _following(ids, action_mask, after) - ids, 0)
    if bool((steps < 0).any()):
        raise ValueError("turn_ids must not decrease along the action tokens of a row.")
    return steps


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
    rows, counts = action_mask.nonzero()[:, 0], action_mask.sum(dim=1)
    first = (counts.cumsum(0) - counts).repeat_interleave(num_steps)
    # All turns of all rows numbered in one line: the last action token up to a turn, or the first one of its row.
    turns = torch.arange(batch * num_steps, device=rows.device)
    target = torch.searchsorted(rows * num_steps + turn_ids[action_mask], turns, right=True) - 1
    exact = step_rewards.double()
    # One place more, for the zeros of rows without action tokens behind the last one that has some.
    flat = exact.new_zeros(len(rows) + 1).index_add_(0, torch.maximum(target, first), exact.flatten())
    out = _on(action_mask, flat[:-1])
    lost = out.sum(dim=1) - exact.sum(dim=1)
    assert bool((lost.abs() <= 1e-9 * exact.abs().sum(dim=1)).all()), "rewards were lost on the way"
    return out.to(step_rewards.dtype)


def _checked(
    rewards: Tensor, values: Tensor, action_mask: Tensor, bootstrap_value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, values and bootstrap [B, 1] in float64, when they are what all estimators take."""
    check_token_tensors(action_mask, "action_mask", rewards=rewards, values=values)
    if values.dtype != rewards.dtype:
        raise ValueError(f"rewards and values must have one dtype, got {rewards.dtype} and {values.dtype}.")
    if bootstrap_value.shape != action_mask.shape[:1] or not bootstrap_value.is_floating_point():
        raise ValueError(
            f"bootstrap_value must be floating [B] = [{action_mask.shape[0]}], got {bootstrap_value.dtype} "
            f"{list(bootstrap_value.shape)}. It holds one value per trajectory, 0 for those that terminated."
        )
    return rewards.double(), values.double(), bootstrap_value.double()[:, None]


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


def _turns(steps: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`steps` in float64; where the first, and where the last action token of each turn is: bool [B, T]."""
    last = mask & ((steps > 0) | (mask.cumsum(1) == mask.sum(1, keepdim=True)))
    return steps.double(), _on(mask, last[mask].roll(1)), last


def _following(x: Tensor, mask: Tensor, end: Tensor) -> Tensor:
    """x at the next true position of the row; `end`, broadcast, at the last one."""
    return torch.where(mask.cumsum(1) == mask.sum(1, keepdim=True), end, _on(mask, x[mask].roll(-1)))


def _gae(r: Tensor, v: Tensor, bootstrap: Tensor, mask: Tensor, discount: Tensor, lam: Tensor | float) -> Tensor:
    """The recurrence over the true positions of each row, all float64 [B, T]; bootstrap is [B, 1]."""
    return _reverse_scan(r + discount * _following(v, mask, bootstrap) - v, discount * lam, mask)


def _reverse_scan(delta: Tensor, carry: Tensor, mask: Tensor) -> Tensor:
    """A_k = delta_k + carry_k * A_{k+1} over the true positions of each row, 0 elsewhere.

    The loop runs over the largest number of them in a row (not over T), all rows at once.
    """
    place = (mask.cumsum(1)[mask] - 1, mask.nonzero()[:, 0])
    table = delta.new_zeros(int(mask.sum(1).max()) if mask.numel() else 0, len(mask))
    factors = torch.zeros_like(table)
    table[place], factors[place] = delta[mask], carry[mask]
    for k in range(len(table) - 2, -1, -1):
        table[k].addcmul_(factors[k], table[k + 1])
    return _on(mask, table[place])


def _on(mask: Tensor, flat: Tensor) -> Tensor:
    """[B, T] with these values on the true positions, row by row, and zeros elsewhere."""
    return flat.new_zeros(mask.shape).masked_scatter_(mask, flat)
