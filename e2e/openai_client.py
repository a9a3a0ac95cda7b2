"""Asks for completions with OpenAI's client: openai_client.py BASE_URL."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
print("models", *(model.id for model in client.models.list()))
messages = [{"role": "system", "content": "You answer. " * 400}, {"role": "user", "content": "Well?"}]
whole = client.chat.completions.create(model="small", messages=messages)
print("whole", len(whole.choices[0].message.content.split()))
messages += [{"role": "assistant", "content": "So."}, {"role": "user", "content": "And?"}]
stream = client.chat.completions.create(
    model="small", messages=messages, stream=True, stream_options={"include_usage": True}
)
words, cached = 0, 0
for event in stream:
    words += len([choice for choice in event.choices if choice.delta.content])
    if event.usage:
        cached = event.usage.prompt_tokens_details.cached_tokens
print("stream", words)
print("usage", cached > 0)
instructions = "You answer. " * 400
response = client.responses.create(model="small", instructions=instructions, input="Well?")
print("response", len(response.output_text.split()), response.usage.output_tokens)
words, cached = 0, 0
for event in client.responses.create(model="small", instructions=instructions, input="Well? And?", stream=True):
    if event.type == "response.output_text.delta":
        words += len(event.delta.split())
    if event.type == "response.completed":
        cached = event.response.usage.input_tokens_details.cached_tokens
print("events", words, cached > 0)
embeddings = client.embeddings.create(model="small", input=["one", "two"])
print("embedding", len(embeddings.data[0].embedding))
