//! Any bytes as a request to a language model and as its answer: no panic, and nothing depends on where they are split.
//! The same bytes as answers with lists of models: the joined list can be read again, and has the same models.
#![no_main]

use evenkeel_inference::chain::{ChainBuilder, HashKey, MAX_BLOCKS};
use evenkeel_inference::scanner::{Progress, Scanner};
use evenkeel_inference::usage::UsageReader;
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

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (size, is_event_stream, bytes) = input;
    let size = usize::from(size) + 1;
    assert_eq!(scan(bytes.chunks(size)), scan([bytes].into_iter()));
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
