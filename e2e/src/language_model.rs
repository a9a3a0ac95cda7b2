//! An engine for language models in small: it speaks the APIs of OpenAI and Anthropic, remembers the beginnings of
//! prompts, and says so.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::member::Member;
use crate::wire::Message;

/// Bytes of a prompt's block, and of a token.
const BLOCK_BYTES: usize = 64;
const TOKEN_BYTES: usize = 4;

/// Time that the engine takes to read a token.
const READ_TIME: Duration = Duration::from_micros(5);

/// Number of words of an answer.
pub const ANSWER_WORDS: usize = 5;

/// An engine. It answers a body that is no request for a completion with `N bytes`.
pub struct LanguageModel {
    member: Member,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Hashes of the beginnings of prompts that the engine has read.
    memory: Mutex<HashSet<u64>>,
    /// Status with which requests are refused; 0 if they are not.
    refuses: AtomicU16,
    refused: AtomicU64,
    answered: AtomicU64,
    /// Requests that wait according to the engine's metrics.
    waiting: AtomicU64,
    /// Requests whose prompts began as one before.
    continued: AtomicU64,
}

impl LanguageModel {
    /// Starts an engine.
    pub fn start() -> Self {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let member = Member::answering_with(move |request| shared.answer_request(request));
        LanguageModel { member, state }
    }

    /// Returns the address at which the engine listens.
    pub fn address(&self) -> SocketAddr {
        self.member.address()
    }

    /// The member that is the engine.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Refuses all requests with this status from now on.
    pub fn refuse_with(&self, status: u16) {
        self.state.refuses.store(status, Ordering::SeqCst);
    }

    /// Says in the engine's metrics, which are those of vLLM, that so many requests wait.
    pub fn report_waiting(&self, requests: u64) {
        self.state.waiting.store(requests, Ordering::SeqCst);
    }

    /// Number of requests that were refused.
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::SeqCst)
    }

    /// Number of completions.
    pub fn answered(&self) -> u64 {
        self.state.answered.load(Ordering::SeqCst)
    }

    /// Number of completions of which the engine knew the beginning of the prompt.
    pub fn continued(&self) -> u64 {
        self.state.continued.load(Ordering::SeqCst)
    }
}

impl State {
    fn answer_request(&self, request: &Message) -> String {
        if request.second_word() == "/metrics" {
            let waiting = self.waiting.load(Ordering::SeqCst);
            return crate::member::ok_response(&format!(
                "vllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
                 vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:kv_cache_usage_perc{{engine=\"0\"}} 0.5\n"
            ));
        }
        match self.refuses.load(Ordering::SeqCst) {
            0 => {}
            status => {
                self.refused.fetch_add(1, Ordering::SeqCst);
                return whole(status, &json!({"error": {"message": "the queue is full"}}));
            }
        }
        if request.second_word() == "/v1/models" {
            return whole(
                200,
                &json!({"object": "list", "data": [{"id": "small", "object": "model"}]}),
            );
        }
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        if request.second_word() == "/v1/messages" {
            return self.answer_messages(&asked);
        }
        if request.second_word() == "/v1/responses" {
            return self.answer_response(&asked);
        }
        if request.second_word() == "/v1/embeddings" {
            return self.answer_embedding(&asked);
        }
        let prompt = match (&asked["messages"], &asked["prompt"]) {
            (Value::Array(messages), _) => {
                let texts = messages.iter().map(|message| message.to_string());
                texts.collect::<Vec<_>>().join(",")
            }
            (_, Value::String(text)) => text.clone(),
            _ => return crate::member::ok_response(&format!("{} bytes", request.body.len())),
        };
        let cached = self.read_prompt(prompt.as_bytes());
        let tokens = prompt.len() / TOKEN_BYTES;
        self.answered.fetch_add(1, Ordering::SeqCst);
        let usage = json!({
            "prompt_tokens": tokens,
            "completion_tokens": ANSWER_WORDS,
            "total_tokens": tokens + ANSWER_WORDS,
            "prompt_tokens_details": {"cached_tokens": cached},
        });
        match asked["stream"] == true {
            true => stream(asked["stream_options"]["include_usage"] == true, &usage),
            false => {
                let content = "word ".repeat(ANSWER_WORDS);
                let message = json!({"role": "assistant", "content": content});
                let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
                whole(200, &completion("chat.completion", &choice, &usage))
            }
        }
    }

    /// Answers a request for messages, as Anthropic's API has them.
    fn answer_messages(&self, asked: &Value) -> String {
        let messages = asked["messages"].as_array().into_iter().flatten();
        let texts: Vec<String> = messages.map(|message| message.to_string()).collect();
        if texts.is_empty() {
            let error =
                json!({"type": "invalid_request_error", "message": "messages: are missing"});
            return whole(400, &json!({"type": "error", "error": error}));
        }
        let prompt = format!("{}{}", asked["system"], texts.join(","));
        let cached = self.read_prompt(prompt.as_bytes());
        let tokens = prompt.len() / TOKEN_BYTES;
        self.answered.fetch_add(1, Ordering::SeqCst);
        let message = |words: usize| {
            let content = match words {
                0 => json!([]),
                _ => json!([{"type": "text", "text": "word ".repeat(words)}]),
            };
            json!({
                "id": "m1", "type": "message", "role": "assistant", "model": "small",
                "content": content, "stop_reason": null, "stop_sequence": null,
                "usage": {
                    "input_tokens": tokens - cached,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": cached,
                    "output_tokens": words,
                },
            })
        };
        if asked["stream"] != true {
            return whole(200, &message(ANSWER_WORDS));
        }
        let mut events = vec![
            json!({"type": "message_start", "message": message(0)}),
            json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
            json!({"type": "ping"}),
        ];
        let delta = json!({"type": "text_delta", "text": "word "});
        let delta = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        events.extend(vec![delta; ANSWER_WORDS]);
        let end = json!({"stop_reason": "end_turn", "stop_sequence": null});
        events.extend([
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": end, "usage": {"output_tokens": ANSWER_WORDS}}),
            json!({"type": "message_stop"}),
        ]);
        named_stream(events)
    }

    /// Answers a request for a response, as OpenAI's newer API has them.
    fn answer_response(&self, asked: &Value) -> String {
        let prompt = format!("{}{}", asked["instructions"], asked["input"]);
        let cached = self.read_prompt(prompt.as_bytes());
        let tokens = prompt.len() / TOKEN_BYTES;
        self.answered.fetch_add(1, Ordering::SeqCst);
        let response = |words: usize| {
            let text =
                json!({"type": "output_text", "text": "word ".repeat(words), "annotations": []});
            let message = json!({
                "type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [text],
            });
            let usage = json!({
                "input_tokens": tokens, "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": words, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": tokens + words,
            });
            let is_over = words > 0;
            json!({
                "id": "r1", "object": "response", "created_at": 1, "model": "small", "tools": [],
                "status": if is_over { "completed" } else { "in_progress" },
                "output": if is_over { json!([message]) } else { json!([]) },
                "usage": if is_over { usage } else { Value::Null },
            })
        };
        if asked["stream"] != true {
            return whole(200, &response(ANSWER_WORDS));
        }
        let mut events = vec![json!({"type": "response.created", "response": response(0)})];
        let delta = json!({
            "type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "content_index": 0,
            "delta": "word ",
        });
        events.extend(vec![delta; ANSWER_WORDS]);
        events.push(json!({"type": "response.completed", "response": response(ANSWER_WORDS)}));
        named_stream(events)
    }

    /// Answers a request for an embedding.
    fn answer_embedding(&self, asked: &Value) -> String {
        let prompt = asked["input"].to_string();
        self.read_prompt(prompt.as_bytes());
        let tokens = prompt.len() / TOKEN_BYTES;
        self.answered.fetch_add(1, Ordering::SeqCst);
        let embedding = json!({"object": "embedding", "index": 0, "embedding": [0.25, 0.5]});
        let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
        let body = json!({"object": "list", "data": [embedding], "model": "small", "usage": usage});
        whole(200, &body)
    }

    /// Reads a prompt. Returns the number of tokens that the engine has known.
    fn read_prompt(&self, prompt: &[u8]) -> usize {
        let mut memory = self.memory.lock().expect("no panic");
        let mut hasher = DefaultHasher::new();
        let (mut known, mut is_known) = (0, true);
        for block in prompt.chunks_exact(BLOCK_BYTES) {
            block.hash(&mut hasher);
            is_known &= !memory.insert(hasher.finish());
            known += usize::from(is_known) * BLOCK_BYTES / TOKEN_BYTES;
        }
        drop(memory);
        if known > 0 {
            self.continued.fetch_add(1, Ordering::SeqCst);
        }
        let unread = (prompt.len() / TOKEN_BYTES).saturating_sub(known);
        thread::sleep(READ_TIME * u32::try_from(unread).expect("a short prompt"));
        known
    }
}

fn completion(object: &str, choice: &Value, usage: &Value) -> Value {
    json!({
        "id": "c1", "object": object, "created": 1, "model": "small",
        "choices": [choice], "usage": usage,
    })
}

fn whole(status: u16, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// A stream of a completion.
fn stream(has_usage: bool, usage: &Value) -> String {
    let mut events = String::new();
    for _ in 0..ANSWER_WORDS {
        let choice = json!({"index": 0, "delta": {"role": "assistant", "content": "word "}});
        let event = completion("chat.completion.chunk", &choice, &Value::Null);
        events += &format!("data: {event}\n\n");
    }
    if has_usage {
        let mut event = completion("chat.completion.chunk", &Value::Null, usage);
        event["choices"] = json!([]);
        events += &format!("data: {event}\n\n");
    }
    stream_of(&(events + "data: [DONE]\n\n"))
}

/// A stream of events whose names are their types.
fn named_stream(mut events: Vec<Value>) -> String {
    let events = events.iter_mut().enumerate().map(|(number, event)| {
        event["sequence_number"] = number.into();
        let name = event["type"].as_str().unwrap_or_default();
        format!("event: {name}\ndata: {event}\n\n")
    });
    stream_of(&events.collect::<String>())
}

/// Response with these events, in chunks none of which is an event.
fn stream_of(events: &str) -> String {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut answer = head.to_owned();
    for part in events.as_bytes().chunks(100) {
        let text = std::str::from_utf8(part).expect("ASCII");
        answer += &format!("{:x}\r\n{text}\r\n", part.len());
    }
    answer + "0\r\n\r\n"
}
