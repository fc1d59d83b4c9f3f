"""What an agent asks the user to do with the phone (telecom), read from its text, and done.

A request is the name of a user tool, with its arguments in parentheses where it has any, or one of the plain phrases
below. Requests are carried out in the order in which they are written; those after "do not", "without" and the like in
the same clause are not. Nothing else is understood: the user then answers as to any other message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from envgym.tools import ToolCall, parse_calls

_SENTENCE = re.compile(r"[.!?;]+(?:\s+|$)|\n+")
_NEGATION = re.compile(r"\b(?:do not|don't|never|without|no need to|avoid|instead of)\b[^,:]*\Z", re.I)
_GAP = r"[^.!?;]{0,40}?"


def _compiled(*phrases: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern, re.I), meaning) for pattern, meaning in phrases)


_SWITCHES: tuple[tuple[str, str, str], ...] = (
    ("airplane mode", r"(?:air ?plane|flight) mode", "toggle_airplane_mode"),
    ("data saver mode", r"data[ -]saver(?: mode)?", "toggle_data_saver_mode"),
    ("data roaming", r"(?:data )?roaming", "toggle_roaming"),
    ("mobile data", r"(?:mobile|cellular) data", "toggle_data"),
    ("Wi-Fi calling", r"wi-?fi calling", "toggle_wifi_calling"),
    ("Wi-Fi", r"wi-?fi(?! calling)", "toggle_wifi"),
)
"""Name of a switch for the user's answer, how an agent may write it, and its tool."""

_STATES: dict[str, Callable[[Any], bool]] = {
    "toggle_airplane_mode": lambda device: device.airplane_mode,
    "toggle_data_saver_mode": lambda device: device.data_saver_mode,
    "toggle_roaming": lambda device: device.roaming_enabled,
    "toggle_data": lambda device: device.data_enabled,
    "toggle_wifi_calling": lambda device: device.wifi_calling_enabled,
    "toggle_wifi": lambda device: device.wifi_enabled,
}

_SWITCH_PHRASES = _compiled(
    *(
        (
            r"\b(?:(?P<verb>enable|disable|activate|deactivate|toggle)|(?:turn|switch)(?: (?P<before>on|off))?)"
            rf" (?:(?:your|the|phone's|device's) )*{pattern}(?: (?P<after>on|off)\b)?",
            tool,
        )
        for _, pattern, tool in _SWITCHES
    )
)

_PHRASES: tuple[tuple[re.Pattern[str], str], ...] = _compiled(
    (r"\b(?:restart|reboot|power[ -]cycle)\b", "reboot_device"),
    (rf"\b(?:re-?seat|re-?insert|remove and (?:re)?insert)\b{_GAP}\bsim\b", "reseat_sim_card"),
    (r"\bspeed test\b", "run_speed_test"),
    (r"\bstatus bar\b", "check_status_bar"),
    (r"\bnetwork status\b|\bsignal strength\b", "check_network_status"),
    (rf"\b(?:check|what)\b{_GAP}\bnetwork mode\b", "check_network_mode_preference"),
    (rf"\bsim (?:card )?status\b|\bcheck\b{_GAP}\bsim\b", "check_sim_status"),
    (rf"\breset\b{_GAP}\bapn\b", "reset_apn_settings"),
    (rf"\bcheck\b{_GAP}\bapn\b", "check_apn_settings"),
    (rf"\b(?:disconnect|turn off|disable|switch off)\b{_GAP}\bvpn\b", "disconnect_vpn"),
    (rf"\b(?<!dis)(?:connect|turn on|enable)\b{_GAP}\bvpn\b", "connect_vpn"),
    (rf"\b(?:check|using|is)\b{_GAP}\bvpn\b", "check_vpn_status"),
    (rf"\b(?:check|is)\b{_GAP}\b(?:data[ -]saver|data restriction)", "check_data_restriction_status"),
    (rf"\b(?:check|is)\b{_GAP}\bwi-?fi calling\b", "check_wifi_calling_status"),
    (rf"\b(?:check|is)\b{_GAP}\bwi-?fi\b(?! calling)", "check_wifi_status"),
    (r"\binstalled apps\b|\bapps\b[^.!?;]{0,20}\binstalled\b", "check_installed_apps"),
    (rf"\b(?:send|try|test)\b{_GAP}\b(?:mms|picture message)", "can_send_mms"),
    (rf"\bcheck\b{_GAP}\bpayment request\b", "check_payment_request"),
    (r"\b(?:pay (?:the|your|this) (?:overdue )?bill|make (?:the|a|your) payment)\b", "make_payment"),
)

_MODES: tuple[tuple[re.Pattern[str], str], ...] = _compiled(
    (r"4g(?:\s*/\s*|_| and | or )5g|5g(?:\s*/\s*| and | or )4g|5g", "4g_5g_preferred"),
    (r"4g", "4g_only"),
    (r"3g", "3g_only"),
    (r"2g", "2g_only"),
)

_SET_MODE = re.compile(rf"\b(?:set|change|switch)\b{_GAP}\bnetwork (?:mode|preference)", re.I)
_PERMISSION = re.compile(r"\b(grant|allow|give|check)\b[^.!?;]{0,80}?\bpermission", re.I)


class Request(NamedTuple):
    """Something to do with the phone.

    Attributes:
        at: Where the request begins in its sentence.
        tool: Name of the user's tool.
        arguments: Its arguments.
        wanted: The state a switch is to have; None uses the tool whatever its state.
    """

    at: int
    tool: str
    arguments: Mapping[str, Any]
    wanted: bool | None = None


class Phone:
    """The user's phone: carries out what an agent asks for.

    Args:
        toolkit: tau2's toolkit of the user.
        call: Runs one of its tools and returns tau2's answer.
    """

    def __init__(self, toolkit: Any, call: Callable[[str, Mapping[str, Any]], Any]) -> None:
        self._toolkit = toolkit
        self._call = call
        self._names = re.compile(rf"\b({'|'.join(sorted(toolkit.tools, key=len, reverse=True))})\b")

    def obey(self, text: str) -> list[str]:
        """Does what the text asks for.

        Returns:
            One answer for each request; empty where there is none.
        """
        answers: list[str] = []
        start = 0
        for end in [*_SENTENCE.finditer(text), None]:
            sentence = text[start : end.start() if end else len(text)]
            start = end.end() if end else start
            for request in self._requests(sentence):
                answers.append(self._do(request))
        return answers

    def _do(self, request: Request) -> str:
        _, tool, arguments, wanted = request
        if wanted is not None and _STATES[tool](self._toolkit.device) == wanted:
            label = next(label for label, _, name in _SWITCHES if name == tool)
            return f"{label[0].upper()}{label[1:]} is already {'on' if wanted else 'off'}."
        return str(self._call(tool, arguments).content)

    def _requests(self, sentence: str) -> list[Request]:
        found = [*self._named(sentence)] or [*self._phrased(sentence), *self._permissions(sentence)]
        kept = [entry for entry in found if not _NEGATION.search(sentence, max(0, entry.at - 40), entry.at)]
        return sorted(kept, key=lambda entry: entry.at)

    def _named(self, sentence: str) -> Iterator[Request]:
        for match in self._names.finditer(sentence):
            yield Request(match.start(), match[1], _arguments(match[1], sentence[match.end() :]))

    def _phrased(self, sentence: str) -> Iterator[Request]:
        for pattern, tool in _SWITCH_PHRASES:
            match = pattern.search(sentence)
            word = (match["verb"] or match["before"] or match["after"] or "").lower() if match else ""
            if match and word:
                wanted = None if word == "toggle" else word in ("enable", "activate", "on")
                yield Request(match.start(), tool, {}, wanted)
        for pattern, tool in _PHRASES:
            if match := pattern.search(sentence):
                yield Request(match.start(), tool, {})
        if match := _SET_MODE.search(sentence):
            for pattern, mode in _MODES:
                if pattern.search(sentence, match.start()):
                    yield Request(match.start(), "set_network_mode_preference", {"mode": mode})
                    break

    def _permissions(self, sentence: str) -> Iterator[Request]:
        match = _PERMISSION.search(sentence)
        if match is None:
            return
        words = set(re.findall(r"\w+", sentence.lower()))
        app = next((name for name in self._toolkit.device.app_statuses if name in words), "messaging")
        if match[1].lower() == "check":
            yield Request(match.start(), "check_app_permissions", {"app_name": app})
            return
        for permission in ("sms", "storage", "phone", "network"):
            if permission in words:
                yield Request(match.start(), "grant_app_permission", {"app_name": app, "permission": permission})


def _arguments(name: str, rest: str) -> Mapping[str, Any]:
    """The arguments in the parentheses after a tool's name: a JSON object, or name=value pairs."""
    if not rest.startswith("("):
        return {}
    inside = rest[1:]
    if inside.lstrip().startswith("{"):
        try:
            value, _ = json.JSONDecoder().raw_decode(inside.lstrip())
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}
    closing = inside.find(")")
    if closing < 0:
        return {}
    calls = parse_calls(f"{name}({' '.join(inside[:closing].split())})", "function")
    call = calls[0] if calls else None
    return {key: str(value) for key, value in call.arguments.items()} if isinstance(call, ToolCall) else {}
