"""Lists the models with OpenAI's client, and asks for single models: models_client.py BASE_URL KEY [NAME...]."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
try:
    print("models", *(model.id for model in client.models.list()))
except openai.APIStatusError as error:
    print(type(error).__name__, error.status_code, error.code)
for name in sys.argv[3:]:
    try:
        print("model", client.models.retrieve(name).id)
    except openai.APIStatusError as error:
        print(type(error).__name__, error.status_code, error.code)
