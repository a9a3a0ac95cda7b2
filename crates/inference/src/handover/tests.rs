use proptest::prelude::*;

use super::*;
use crate::group::GroupSettings;
use crate::memory::MemberMemory;

fn group(index_bytes: usize) -> EngineGroup {
    EngineGroup::new(&GroupSettings {
        members: 4,
        index_bytes,
        decay_seconds: 10.0,
    })
}

fn links(seed: u64, count: usize) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| rng.u64(..)).collect()
}

fn send(group: &EngineGroup, links: &[u64], member: usize) {
    let memories = group.member_memories();
    let stamp = memories[member].advance_clock(links.len() as u64 * 128);
    group
        .block_index()
        .record_chain(links, member, stamp, memories);
}

fn blocks(group: &EngineGroup, links: &[u64], member: usize) -> usize {
    let memories: &[MemberMemory] = group.member_memories();
    let matches = group.block_index().find_matches(links, memories);
    matches.blocks_of(member)
}

fn written(group: &EngineGroup) -> Vec<u8> {
    let mut bytes = Vec::new();
    let copied = write_index(group.block_index(), &mut bytes, || true).unwrap();
    assert!(copied.is_complete);
    bytes
}

fn hand_over(old: &EngineGroup, new: &EngineGroup, numbers: &[Option<u16>]) -> CopiedEntries {
    for (from, to) in numbers.iter().enumerate() {
        if let (Some(words), Some(to)) = (old.export_member(from), to) {
            new.import_member(usize::from(*to), &words);
        }
    }
    new.import_shared(&old.export_shared());
    let bytes = written(old);
    read_index(new.block_index(), &mut bytes.as_slice(), numbers, || true).unwrap()
}

#[test]
fn members_keep_their_prompts_under_other_numbers_in_an_index_of_another_size() {
    for size in [1 << 18, 1 << 20, 1 << 22] {
        let (old, new) = (group(1 << 20), group(size));
        let chains: Vec<_> = (0..30).map(|seed| links(seed, 40)).collect();
        for (chain, member) in chains.iter().zip((0..3).cycle()) {
            send(&old, chain, member);
            send(&old, &chain[..7], (member + 1) % 3);
        }
        old.member_memories()[1].set_span(123_456);
        // Member 2 is gone.
        let copied = hand_over(&old, &new, &[Some(3), Some(0), None]);
        assert!(copied.is_complete && copied.entries > 0);
        for (chain, member) in chains.iter().zip((0..3).cycle()) {
            for (from, to) in [(0, 3), (1, 0)] {
                assert_eq!(
                    blocks(&new, chain, to),
                    blocks(&old, chain, from),
                    "{member}"
                );
            }
            assert_eq!([1, 2].map(|none| blocks(&new, chain, none)), [0, 0]);
        }
        assert_eq!(new.member_memories()[0].span_tokens(), 123_456);
    }
}

#[test]
fn speeds_and_figures_are_the_same_in_the_new_process() {
    let (old, new) = (group(1 << 16), group(1 << 16));
    let speeds = &old.member_speeds()[1];
    let time = crate::speed::LearningTime {
        now_nanos: 5_000_000_000,
        decay_seconds: 10.0,
    };
    for tokens in 1..60 {
        let fleet = crate::speed::Speeds::FIRST;
        speeds.learn_first_token(tokens as f32 * 100.0, tokens as f32 * 0.05, &fleet, time);
        speeds.learn_pace(tokens as f32, 0.03, &fleet, time);
    }
    let prediction = crate::memory::Prediction {
        recorded_tokens: 4000.0,
        recorded_age: 1_000_000,
        ..Default::default()
    };
    old.member_memories()[1].learn_result(&prediction, 1000.0);
    let usage = crate::usage::Usage {
        prompt_tokens: 5000,
        cached_tokens: Some(2500),
        output_tokens: 50,
    };
    old.token_figures().learn_usage(7, 10_000, &usage);
    old.keep_up(0, 1, 5_000_000_000);
    hand_over(&old, &new, &[Some(0), Some(1)]);
    assert_eq!(new.member_speeds()[1].get(), old.member_speeds()[1].get());
    assert_eq!(new.export_member(1), old.export_member(1));
    let expected = new.member_memories()[1].expect_tokens(&prediction);
    assert!(expected > 0.0);
    assert_eq!(new.export_shared(), old.export_shared());
    assert_eq!(
        new.token_figures().tokens_per_byte(7),
        old.token_figures().tokens_per_byte(7)
    );
    // Another process, which knows more words.
    new.import_member(1, &[1; MEMBER_WORDS + 1]);
    new.import_shared(&[]);
    assert_eq!(new.export_member(1), old.export_member(1));
}

#[test]
fn too_little_time_leaves_the_rest_out() {
    let old = group(1 << 20);
    (0..50).for_each(|seed| send(&old, &links(seed, 40), 0));
    let mut calls = 0;
    let mut bytes = Vec::new();
    let has_time = || {
        calls += 1;
        calls < 4
    };
    let part = write_index(old.block_index(), &mut bytes, has_time).unwrap();
    assert!(!part.is_complete && (1..2000).contains(&part.entries));
    let new = group(1 << 20);
    let read = read_index(new.block_index(), &mut bytes.as_slice(), &[Some(0)], || {
        true
    });
    assert_eq!(read.unwrap().entries, part.entries);
    let none = read_index(new.block_index(), &mut bytes.as_slice(), &[Some(0)], || {
        false
    });
    assert_eq!(none.unwrap(), CopiedEntries::default());
}

#[test]
fn truncated_and_changed_bytes_are_refused() {
    let old = group(1 << 18);
    send(&old, &links(1, 40), 0);
    let good = written(&old);
    let read = |bytes: &[u8]| {
        let new = group(1 << 18);
        read_index(new.block_index(), &mut &*bytes, &[Some(0)], || true)
    };
    assert_eq!(read(&good).unwrap().entries, 40);
    for length in 0..good.len() {
        assert!(read(&good[..length]).is_err(), "{length}");
    }
    for place in 0..good.len() - HEAD_BYTES {
        let mut bad = good.clone();
        bad[place] ^= 0x40;
        assert!(read(&bad).is_err(), "{place}");
    }
}

proptest! {
    #[test]
    fn hostile_entries_and_words_break_nothing(
        entries in prop::collection::vec(any::<[u64; 4]>(), 0..300),
        words in any::<[u64; MEMBER_WORDS]>(),
        shared in any::<u64>(),
        numbers in prop::collection::vec(any::<Option<u16>>(), 0..5),
        noise in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let new = group(1 << 16);
        let _ = read_index(new.block_index(), &mut noise.as_slice(), &numbers, || true);
        let mut bytes = Vec::new();
        write_frame(&entries, &mut bytes).unwrap();
        write_frame(&[], &mut bytes).unwrap();
        read_index(new.block_index(), &mut bytes.as_slice(), &numbers, || true).unwrap();
        new.import_member(0, &words);
        let count = new.export_shared().len();
        new.import_shared(&vec![shared; count]);
        send(&new, &links(1, 40), 0);
        prop_assert_eq!(blocks(&new, &links(1, 40), 0) > 0, new.member_memories()[0].span_tokens() > 0);
        new.keep_up(0, 1000, u64::MAX);
        let speeds = new.member_speeds()[0].get();
        for value in [speeds.delay, speeds.read, speeds.write, speeds.crowd] {
            prop_assert!(value.is_finite() && value >= 0.0);
        }
        prop_assert!((0.0..=1.0).contains(&new.token_figures().found_share()));
    }
}
