//! Any bytes as a request to a language model and as its answer: no panic, and nothing depends on where they are split.
//! A name in place of the model's changes nothing else, with and without chunks.
//! The same bytes as answers with lists of models: the joined list can be read again, and has the same models.
#![no_main]

use evenkeel_inference::chain::{ChainBuilder, HashKey, MAX_BLOCKS};
use evenkeel_inference::scanner::{Progress, Scanner};
use evenkeel_inference::usage::UsageReader;
use evenkeel_proxy::http1::chunked::Decoder;
use evenkeel_proxy::http1::content_edit::ContentEdit;
use evenkeel_proxy::model_list::ModelList;
use libfuzzer_sys::fuzz_target;

/// Everything that a request says.
type Request = (
    Progress,
    Option<Vec<u8>>,
    Option<u32>,
    [bool; 2],
    u64,
    Vec<u64>,
);

fn scan<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Request {
    let (mut scanner, mut builder) = (Scanner::new(), ChainBuilder::new(HashKey::new([1, 2, 3])));
    parts.for_each(|part| scanner.feed_bytes(part, &mut builder));
    let bytes = builder.prompt_bytes();
    let chain = builder.link_blocks();
    assert!(chain.len() <= MAX_BLOCKS && chain.bytes_before(chain.len()) <= bytes);
    (
        scanner.scan_progress(),
        scanner.model_name().map(<[u8]>::to_vec),
        scanner.max_tokens(),
        [scanner.wants_stream(), scanner.is_ambiguous()],
        bytes,
        chain.block_links().to_vec(),
    )
}

/// Replaces the name of the model in a body, whole and in chunks of a size, and reads the other body.
fn replace_model(bytes: &[u8], size: usize) {
    const NAME: &str = "Qwen/Qwen2.5";
    let (mut scanner, mut builder) = (Scanner::new(), ChainBuilder::new(HashKey::new([1, 2, 3])));
    scanner.feed_bytes(bytes, &mut builder);
    let Some(place) = scanner.model_place() else {
        return;
    };
    let place = place.start as usize..place.end as usize;
    assert_eq!(bytes.get(place.clone()), scanner.model_name());
    let replace = |wire: &[u8], is_chunked| {
        let edit = ContentEdit::new(wire, is_chunked, place.clone(), NAME.as_bytes())?;
        let mut wire = wire.to_vec();
        wire.splice(edit.place, edit.bytes);
        Some(wire)
    };
    let Some(replaced) = replace(bytes, false) else {
        assert!(place.is_empty());
        return;
    };
    let mut wire = Vec::new();
    for part in bytes.chunks(size) {
        wire.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        wire.extend_from_slice(part);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"0\r\n\r\n");
    let mut chunked = replace(&wire, true).expect("the place is in the body");
    let mut decoder = Decoder::new();
    let (length, scanned) = decoder.strip_framing(&mut chunked).expect("valid chunks");
    assert!(scanned.end);
    assert_eq!(chunked.get(..length), Some(&replaced[..]));
    if scanner.has_ambiguous_model() {
        return;
    }
    if let Ok(mut expected) = serde_json::from_slice::<serde_json::Value>(bytes) {
        expected["model"] = NAME.into();
        let read: serde_json::Value = serde_json::from_slice(&replaced).expect("JSON stays JSON");
        assert_eq!(read, expected);
    }
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, is_event_stream, bytes) = input;
    let size = usize::from(size) + 1;
    assert_eq!(scan(bytes.chunks(size)), scan([bytes].into_iter()));
    replace_model(bytes, size);
    let (mut reader, mut whole) = (
        UsageReader::new(is_event_stream),
        UsageReader::new(is_event_stream),
    );
    let parts = bytes.chunks(size).map(|part| reader.feed_bytes(part));
    assert_eq!(parts.sum::<u64>(), whole.feed_bytes(bytes));
    let usage = whole.find_usage();
    assert_eq!(reader.find_usage(), usage);
    if let Some(usage) = usage {
        assert!(usage.prompt_tokens > 0);
        assert!(
            usage
                .cached_tokens
                .is_none_or(|cached| cached <= usage.prompt_tokens)
        );
    }
    let (first, second) = bytes.split_at(bytes.len() / 2);
    for parts in [&[bytes][..], &[first, second], &[bytes, bytes]] {
        let mut list = ModelList::default();
        let parts = parts
            .iter()
            .filter_map(|part| list.add_answer(part, |_| true).ok());
        let added: usize = parts.sum();
        let mut again = ModelList::default();
        let text = list.into_json();
        assert_eq!(again.add_answer(text.as_bytes(), |_| true), Ok(added));
        assert_eq!(again.into_json(), text);
    }
});
