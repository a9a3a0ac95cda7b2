"""Asks for messages with Anthropic's client: anthropic_client.py BASE_URL."""

import sys

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
system = "You answer. " * 400
messages = [{"role": "user", "content": "Well?"}]
whole = client.messages.create(model="small", max_tokens=100, system=system, messages=messages)
print("whole", sum(len(block.text.split()) for block in whole.content), whole.usage.output_tokens)
messages += [{"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]
words = 0
with client.messages.stream(model="small", max_tokens=100, system=system, messages=messages) as stream:
    for text in stream.text_stream:
        words += len(text.split())
    usage = stream.get_final_message().usage
print("stream", words, usage.output_tokens)
print("cached", usage.cache_read_input_tokens > usage.input_tokens)
try:
    client.messages.create(model="small", max_tokens=100, messages=[])
except anthropic.APIStatusError as error:
    print("refused", error.status_code, error.body["error"]["type"])
