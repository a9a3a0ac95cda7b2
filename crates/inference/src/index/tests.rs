use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn members(count: usize) -> Vec<MemberMemory> {
    (0..count).map(|_| MemberMemory::default()).collect()
}

/// Links of a conversation: number `turn` shares its first blocks with those before.
fn links(conversation: u64, count: usize) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(conversation);
    (0..count).map(|_| rng.u64(..)).collect()
}

fn send(index: &Index, links: &[u64], member: usize, tokens: u64, members: &[MemberMemory]) {
    let stamp = members[member].advance_clock(tokens);
    index.record_chain(links, member, stamp, members);
}

/// Memory of this process that is in use, in bytes.
#[cfg(target_os = "linux")]
fn read_memory() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let resident = pages.split(' ').nth(1).unwrap();
    resident.parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn an_index_takes_memory_as_it_is_used() {
    const BYTES: usize = 1 << 30;
    let before = read_memory();
    let (index, members) = (Index::new(BYTES), members(2));
    let chain = links(1, 10);
    send(&index, &chain, 0, 5000, &members);
    assert_eq!(index.memory_bytes(), BYTES);
    assert_eq!(index.sweep_sets(0, index.set_count(), &members), 0);
    assert!(index.find_matches(&links(2, 10), &members).is_empty());
    assert_eq!(index.find_matches(&chain, &members).blocks_of(0), 10);
    let used = read_memory().saturating_sub(before);
    assert!(used < BYTES / 4, "{used}");
}

#[test]
fn the_rows_of_a_set_are_cache_lines() {
    let index = Index::new(1 << 20);
    let last = index.find_set(index.set_count() - 1).unwrap();
    for row in last.rows {
        assert_eq!(row.as_ptr().align_offset(64), 0);
    }
}

#[test]
fn the_longest_prefix_of_each_member_is_found() {
    let (index, members) = (Index::new(1 << 20), members(4));
    let chain = links(1, 1000);
    assert!(index.find_matches(&chain, &members).is_empty());
    send(&index, &chain[..37], 0, 5000, &members);
    send(&index, &chain[..700], 2, 80_000, &members);
    send(&index, &chain[..1], 3, 1000, &members);
    let matches = index.find_matches(&chain, &members);
    let blocks = [0, 1, 2, 3].map(|member| matches.blocks_of(member));
    assert_eq!(blocks, [37, 0, 700, 1]);
    assert_eq!(
        index.find_matches(&chain[..500], &members).blocks_of(2),
        500
    );
    assert!(index.find_matches(&[], &members).is_empty());
    assert!(index.find_matches(&links(2, 10), &members).is_empty());
}

#[test]
fn more_members_than_an_entry_has_room_for_hold_a_block() {
    let (index, members) = (Index::new(1 << 20), members(MAX_HOLDERS + 4));
    let chain = links(1, 40);
    for member in 0..MAX_HOLDERS {
        send(&index, &chain[..20 + member], member, 1000, &members);
    }
    let matches = index.find_matches(&chain, &members);
    for member in 0..MAX_HOLDERS {
        assert_eq!(matches.blocks_of(member), 20 + member, "{member}");
    }
    // There is no room for a further one but that of the oldest at the last level.
    send(&index, &chain, MAX_HOLDERS, 1000, &members);
    let matches = index.find_matches(&chain, &members);
    assert_eq!(matches.blocks_of(MAX_HOLDERS), 40);
}

#[test]
fn members_that_have_forgotten_hide_no_members_that_hold_a_block() {
    let (index, members) = (Index::new(1 << 20), members(64));
    let chain = links(1, 8);
    let [first, second, holder] = [61, 62, 63];
    // Each of some blocks was read by other members, which have forgotten it meanwhile.
    for (block, readers) in [(0, 0..16), (1, 16..32), (3, 32..48)] {
        for member in readers {
            send(&index, &chain[block..=block], member, 1000, &members);
        }
    }
    for member in &members[..48] {
        member.advance_clock(2 * crate::memory::FIRST_SPAN);
    }
    // These lead a search to the last of these blocks.
    send(&index, &chain[..1], first, 1000, &members);
    send(&index, &chain[1..2], second, 1000, &members);
    send(&index, &chain[3..4], holder, 1000, &members);
    let matches = index.find_matches(&chain, &members);
    assert_eq!(matches.blocks_of(holder), 4);
    let mut predicted = HashMap::new();
    let tokens_before = |blocks: usize| blocks as f32 * 100.0;
    index.predict_members(
        &chain,
        &matches,
        &members,
        tokens_before,
        |member, _, prediction| {
            predicted.insert(
                usize::from(member),
                (prediction.tokens, prediction.recorded_tokens),
            );
        },
    );
    assert!(predicted.len() > MAX_MATCHES - 3, "others fill the list");
    assert_eq!(predicted[&holder], (400.0, 400.0));
    assert_eq!((predicted[&first].0, predicted[&second].0), (100.0, 200.0));
    assert_eq!(predicted[&5], (0.0, 100.0));
}

#[test]
fn predictions_say_how_old_the_last_block_is() {
    let (index, members) = (Index::new(1 << 20), members(1));
    let chain = links(1, 10);
    let tokens = |blocks: usize| blocks as f32 * 100.0;
    let predict = || index.predict_memory(&chain, 0, &members, tokens);
    assert_eq!(predict(), Prediction::default());
    send(&index, &chain, 0, 1600, &members);
    members[0].advance_clock(16_000);
    send(&index, &chain[..4], 0, 1600, &members);
    members[0].advance_clock(1600);
    members[0].set_span(8_000);
    let expected = Prediction {
        tokens: 400.0,
        recorded_tokens: 1000.0,
        age: 1600,
        recorded_age: 16_000 + 1600 + 1600,
        queued_tokens: 0,
    };
    assert_eq!(predict(), expected);
    members[0].forget_all();
    assert_eq!(predict(), Prediction::default());
    assert_eq!(
        index.predict_memory(&chain, 7, &members, tokens),
        Prediction::default()
    );
}

#[test]
fn a_full_set_loses_what_is_forgotten_first_and_then_the_oldest() {
    let (index, members) = (Index::new(SET_BYTES), members(2));
    assert_eq!(index.memory_bytes(), SET_BYTES);
    members[0].set_span(10_000);
    for block in 0..8 {
        send(&index, &links(block, 1), 0, 160, &members);
    }
    send(&index, &links(2, 1), 1, 160, &members);
    // Member 1 has advanced its clock less than member 0, and its block is the youngest.
    let is_known = |block| !index.find_matches(&links(block, 1), &members).is_empty();
    assert!((0..8).all(is_known));
    send(&index, &links(100, 1), 0, 160, &members);
    assert!(!is_known(0) && (1..8).all(is_known) && is_known(100));
    send(&index, &links(101, 1), 0, 160, &members);
    assert!(!is_known(1) && is_known(2));
    members[0].forget_all();
    send(&index, &links(102, 1), 1, 160, &members);
    assert!(is_known(2) && is_known(102));
}

#[test]
fn sweeps_clear_what_nobody_can_hold() {
    let (index, members) = (Index::new(1 << 14), members(2));
    send(&index, &links(1, 50), 0, 160, &members);
    send(&index, &links(2, 50), 1, 160, &members);
    members[0].forget_all();
    let mut next = 0;
    for _ in 0..index.set_count() {
        next = index.sweep_sets(next, 1, &members);
    }
    assert_eq!(next, 0);
    let mut entries = Vec::new();
    index.collect_entries(0, index.set_count(), &mut entries);
    let words = entries.into_iter().flatten();
    let holders: Vec<_> = words.filter_map(read_holder).collect();
    assert_eq!(holders.len(), 50);
    assert!(holders.iter().all(|holder| holder.member == 1));
    assert_eq!(index.find_matches(&links(2, 50), &members).blocks_of(1), 50);
}

#[test]
fn a_new_process_takes_the_table_over() {
    let (old, new, members) = (Index::new(1 << 14), Index::new(1 << 14), members(2));
    send(&old, &links(1, 50), 1, 160, &members);
    let mut entries = Vec::new();
    old.collect_entries(0, old.set_count(), &mut entries);
    // As a member of another number, next to one that is there already.
    send(&new, &links(2, 50), 1, 160, &members);
    for entry in entries {
        assert!(new.restore_entry(entry, &[None, Some(0)]));
        assert!(!new.restore_entry(entry, &[None, Some(0)]), "twice");
    }
    members[0].advance_clock(160);
    assert_eq!(new.find_matches(&links(1, 60), &members).blocks_of(0), 50);
    assert_eq!(new.find_matches(&links(1, 60), &members).blocks_of(1), 0);
    assert_eq!(new.find_matches(&links(2, 60), &members).blocks_of(1), 50);
}

#[test]
fn members_beyond_the_bounds_are_left_out() {
    let (index, members) = (Index::new(0), members(1));
    index.record_chain(&links(1, 3), MAX_MEMBERS, 0, &members);
    index.record_chain(&links(1, 3), usize::MAX, 0, &members);
    index.record_chain(&links(2, 3), 5, 0, &members);
    assert!(index.find_matches(&links(1, 3), &members).is_empty());
    assert!(index.find_matches(&links(2, 3), &members).is_empty());
    assert_eq!(index.sweep_sets(99, usize::MAX >> 1, &members), 0);
}

#[test]
fn workers_write_at_the_same_time() {
    let (index, members) = (Index::new(1 << 12), members(4));
    std::thread::scope(|scope| {
        for member in 0..4 {
            let (index, members) = (&index, &members);
            scope.spawn(move || {
                for turn in 0..300 {
                    let chain = links(turn % 7, 30);
                    send(index, &chain, member, 500, members);
                    for found in index.find_matches(&chain, members).as_slice() {
                        assert!(found.member < 4 && found.blocks <= 30);
                    }
                }
            });
        }
    });
}

/// An index without bounds, by the same rule.
#[derive(Default)]
struct PlainIndex(HashMap<u64, HashMap<usize, u32>>);

impl PlainIndex {
    fn record(&mut self, links: &[u64], member: usize, stamp: u32) {
        for link in links {
            self.0.entry(*link).or_default().insert(member, stamp);
        }
    }

    fn blocks_of(&self, links: &[u64], member: usize, members: &[MemberMemory]) -> usize {
        let moment = members[member].read_moment();
        let is_held = |link: &&u64| {
            let stamp = self.0.get(link).and_then(|holders| holders.get(&member));
            stamp.is_some_and(|stamp| moment.holds_block(*stamp))
        };
        links.iter().take_while(is_held).count()
    }
}

/// A request: conversation, blocks, member, tokens.
fn request() -> impl Strategy<Value = (u64, usize, usize, u64)> {
    (0u64..6, 0usize..60, 0usize..8, 1u64..30_000)
}

proptest! {
    #[test]
    fn a_roomy_index_knows_what_a_plain_map_knows(
        requests in prop::collection::vec(request(), 1..40),
        spans in prop::array::uniform8(1u64..400_000),
        forgotten in prop::option::of((0usize..40, 0usize..8)),
    ) {
        let (index, members) = (Index::new(1 << 19), members(8));
        let mut plain = PlainIndex::default();
        for (member, span) in members.iter().zip(spans) {
            member.set_span(span);
        }
        for (turn, (conversation, blocks, member, tokens)) in requests.into_iter().enumerate() {
            if let Some((at, member)) = forgotten && at == turn {
                members[member].forget_all();
            }
            // Conversations share their first 20 blocks.
            let mut chain = links(99, 20);
            chain.extend(links(conversation, 40));
            let matches = index.find_matches(&chain, &members);
            for member in 0..8 {
                let expected = plain.blocks_of(&chain, member, &members);
                prop_assert_eq!(matches.blocks_of(member), expected);
                let prediction = index.predict_memory(&chain, member, &members, |blocks| blocks as f32);
                prop_assert_eq!(prediction.tokens, expected as f32);
                prop_assert!(prediction.recorded_tokens >= prediction.tokens);
                prop_assert!(prediction.recorded_age >= prediction.age);
            }
            let stamp = members[member].advance_clock(tokens);
            index.record_chain(&chain[..blocks], member, stamp, &members);
            plain.record(&chain[..blocks], member, stamp);
        }
    }

    /// An index that is too small knows less, and nothing that is wrong.
    #[test]
    fn a_small_index_never_believes_more_than_a_plain_map(
        requests in prop::collection::vec(request(), 1..60),
    ) {
        let (index, members) = (Index::new(1 << 11), members(8));
        let mut plain = PlainIndex::default();
        for (conversation, blocks, member, tokens) in requests {
            let chain = links(conversation, 60);
            let matches = index.find_matches(&chain, &members);
            for found in matches.as_slice() {
                let blocks = plain.blocks_of(&chain, usize::from(found.member), &members);
                prop_assert!(found.blocks as usize <= blocks);
            }
            let stamp = members[member].advance_clock(tokens);
            index.record_chain(&chain[..blocks], member, stamp, &members);
            plain.record(&chain[..blocks], member, stamp);
        }
    }
}
