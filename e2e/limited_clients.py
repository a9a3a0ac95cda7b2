"""Uses up a limit of tokens with the clients of OpenAI and Anthropic: limited_clients.py BASE_URL."""

import sys

import anthropic
import openai

messages = [{"role": "user", "content": "Well? " * 100}]

def settings(key):
    return {"api_key": "none", "max_retries": 0, "default_headers": {"X-Key": key}}


of_openai = openai.OpenAI(base_url=sys.argv[1] + "/v1", **settings("a"))
of_anthropic = anthropic.Anthropic(base_url=sys.argv[1], **settings("b"))
for package, create in [(openai, of_openai.chat.completions.create), (anthropic, of_anthropic.messages.create)]:
    answered = 0
    try:
        for _ in range(50):
            create(model="small", max_tokens=10, messages=messages)
            answered += 1
    except package.RateLimitError as error:
        error_type = error.body.get("error", error.body)["type"]
        print(package.__name__, answered > 1, error_type, error.response.headers["retry-after"].isdigit())
