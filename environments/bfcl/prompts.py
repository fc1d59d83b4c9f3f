"""What the policy is told about its tools, in BFCL's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envgym.environments.bfcl.tasks import schemas

PERSONA = "You are an expert in composing functions."
TASK = (
    "You are given a question and a set of possible functions. Based on the question, you will need to make one or "
    "more function/tool calls to achieve the purpose. If none of the functions can be used, point it out. If the given "
    "question lacks the parameters required by the function, also point it out."
)
FORMAT = (
    "You should only return the function calls in your response.\n\nIf you decide to invoke any of the function(s), "
    "you MUST put it in the format of [func_name1(params_name1=params_value1, params_name2=params_value2...), "
    "func_name2(params)].  You SHOULD NOT include any other text in the response."
)
MULTI_TURN = (
    "At each turn, you should try your best to complete the tasks requested by the user within the current turn. "
    "Continue to output functions to call until you have fulfilled the user's request to the best of your ability. "
    "Once you have no more functions to call, the system will consider the current turn complete and proceed to the "
    "next turn or task."
)
ADDED = "I have updated some more functions you can choose from. What about now?"


def system_prompt(functions: Sequence[Mapping[str, Any]], call_format: str) -> str:
    """Instructions of a task.

    The "python" format lists the functions, as BFCL does for prompted models. "hermes" leaves that to the renderer,
    which has their schemas.
    """
    if call_format == "hermes":
        return f"{PERSONA}{TASK}\n\n{MULTI_TURN}"
    documents = json.dumps(list(functions), indent=4)
    tools = f"Here is a list of functions in json format that you can invoke.\n{documents}\n"
    return f"{PERSONA}{TASK}\n\n{FORMAT}\n\n{MULTI_TURN}\n\n{tools}"


def added_functions(functions: Sequence[Mapping[str, Any]], call_format: str) -> str:
    """The message of the user turn that declares held-out functions, with their documents."""
    if call_format == "hermes":
        lines = [json.dumps(schemas()[function["name"]]) for function in functions]
    else:
        lines = [json.dumps(list(functions))]
    return "\n".join([*lines, ADDED])
