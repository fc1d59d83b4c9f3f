"""A small chat server that speaks /v1/chat/completions and is as strict about histories as the real ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = dict[str, Any] | tuple[int, Any]
"""A message (with `finish_reason` and `usage` if they matter), or a status and a body (JSON, or bytes as they are)."""


class ChatServer:
    """Answers each request with `reply(request)` and keeps all of them.

    Attributes:
        requests: Bodies of the requests in order.
        headers: Headers of each.
        base_url: What clients are given.
    """

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.base_url = ""

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append(body)
        if path != "/v1/chat/completions":
            return error(404, f"no such path {path}")
        if problem := history_problem(body["messages"]):
            return error(400, problem)
        reply = self.reply(body)
        if isinstance(reply, tuple):
            return reply
        message = {"role": "assistant", "content": None, **reply}
        finish = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
        usage = message.pop("usage", {"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13})
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return 200, {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [choice],
            "usage": usage,
        }


def error(status: int, message: str, code: str | None = None) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "error", "code": code}}


def call(name: str, arguments: Any, id: str | None = "c1") -> dict[str, Any]:
    """A native call; arguments that are no string are written as JSON."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def history_problem(messages: list[dict[str, Any]]) -> str | None:
    """What OpenAI's server or a chat template would refuse in a history."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"tool_call_ids did not have response messages: {waiting}"
        for made in message.get("tool_calls") or ():
            json.loads(made["function"]["arguments"])
            waiting.append(made["id"])
        if not message.get("tool_calls") and message.get("content") is None:
            return "content is missing"
    return f"tool_call_ids did not have response messages: {waiting}" if waiting else None


@contextmanager
def serving(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[ChatServer]:
    """Runs a chat server on a free port while the block runs."""
    chat = ChatServer(reply)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chat.headers.append(dict(self.headers))
            status, answer = chat.answer(self.path, body)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            if status == 0:  # hang up
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: Any) -> None:
            """A client that went away is not worth a traceback."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    chat.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
