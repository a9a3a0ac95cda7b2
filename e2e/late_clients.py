"""Asks engines that are too busy with the clients of OpenAI and Anthropic: late_clients.py BASE_URL."""

import sys

import anthropic
import openai

messages = [{"role": "user", "content": "Well? " * 100}]
settings = {"api_key": "none", "max_retries": 0}
of_openai = openai.OpenAI(base_url=sys.argv[1] + "/v1", **settings)
of_anthropic = anthropic.Anthropic(base_url=sys.argv[1], **settings)
for package, create in [(openai, of_openai.chat.completions.create), (anthropic, of_anthropic.messages.create)]:
    try:
        create(model="small", max_tokens=10, messages=messages)
        print(package.__name__, "answered")
    except package.RateLimitError as error:
        error_type = error.body.get("error", error.body)["type"]
        print(package.__name__, error_type, error.response.headers["retry-after"].isdigit())
