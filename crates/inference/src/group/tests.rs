use proptest::prelude::*;

use super::*;
use crate::chain::{ChainBuilder, HashKey};
use crate::scanner::Scanner;

const SECOND: u64 = 1_000_000_000;

fn group(members: usize) -> EngineGroup {
    EngineGroup::new(&GroupSettings {
        members,
        index_bytes: 1 << 20,
        decay_seconds: 60.0,
    })
}

/// Builder of the chain of a prompt of this many bytes, which depends on `seed`.
fn scan(seed: u64, bytes: usize) -> ChainBuilder {
    let mut rng = fastrand::Rng::with_seed(seed);
    let text: String = (0..bytes).map(|_| rng.alphanumeric()).collect();
    let mut builder = ChainBuilder::new(HashKey::new([1, 2, 3]));
    let body = format!("{{\"model\":\"m\",\"messages\":[\"{text}\"]}}");
    Scanner::new().feed_bytes(body.as_bytes(), &mut builder);
    builder
}

fn facts(builder: &mut ChainBuilder) -> RequestFacts<'_> {
    RequestFacts {
        model: builder.model_hash(),
        chain: builder.link_blocks(),
        max_tokens: None,
        is_stream: true,
        random: 1,
    }
}

fn candidates(members: usize) -> impl Iterator<Item = Candidate> + Clone {
    (0..members).map(|member| Candidate {
        member,
        key: 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(member as u64 + 1),
        weight: 1.0,
        ..Candidate::default()
    })
}

fn usage(prompt_tokens: u32, cached_tokens: Option<u32>) -> Option<Usage> {
    Some(Usage {
        prompt_tokens,
        cached_tokens,
        output_tokens: 100,
    })
}

fn complete(usage: Option<Usage>) -> AnswerEnd {
    AnswerEnd {
        usage,
        events: 100,
        is_complete: true,
    }
}

/// Serves a request at a member: the first token after `first` seconds, the end two seconds later.
fn serve(
    group: &EngineGroup,
    builder: &mut ChainBuilder,
    member: usize,
    now: u64,
    first: f32,
    usage: Option<Usage>,
) -> Option<PredictionResult> {
    let plan = group.plan_request(facts(builder));
    let mut request = group.begin_request(&plan, member, now).unwrap();
    assert_eq!(request.member_number(), member);
    let first = now + (first * 1e9) as u64;
    group.take_events(&mut request, 1, first);
    request.skip_gap();
    group.take_events(&mut request, 1, first + SECOND / 2);
    group.take_events(&mut request, 98, first + 2 * SECOND);
    group.finish_request(&mut request, &complete(usage), first + 2 * SECOND)
}

#[test]
fn a_conversation_stays_where_it_is_until_that_member_is_busy() {
    let group = group(3);
    let mut builder = scan(1, 40_000);
    let choose = |builder: &mut ChainBuilder, now: u64| {
        let plan = group.plan_request(facts(builder));
        let chosen = group.choose_member(&plan, candidates(3), now, |_, _| {});
        chosen.unwrap().member
    };
    let home = choose(&mut builder, 0);
    let cached = usage(10_000, Some(0));
    let result = serve(&group, &mut builder, home, 0, 1.0, cached);
    assert_eq!(result, Some(PredictionResult::Right));
    assert_eq!(choose(&mut builder, 10 * SECOND), home);
    let plan = group.plan_request(facts(&mut builder));
    let candidate = candidates(3).nth(home).unwrap();
    let known = group
        .price_request(&plan, &candidate, 10 * SECOND)
        .known_tokens;
    assert!(known > 9000.0, "{known}");
    // Much other work comes there: it is cheaper to read the prompt elsewhere.
    let mut others: Vec<_> = (0..20)
        .map(|seed| {
            let mut other = scan(100 + seed, 60_000);
            let plan = group.plan_request(facts(&mut other));
            group.begin_request(&plan, home, 10 * SECOND).unwrap()
        })
        .collect();
    assert_ne!(choose(&mut builder, 10 * SECOND), home);
    for request in &mut others {
        group.finish_request(request, &AnswerEnd::default(), 11 * SECOND);
    }
    assert_eq!(choose(&mut builder, 11 * SECOND), home);
    // Members that the caller leaves out get nothing.
    let plan = group.plan_request(facts(&mut builder));
    let others = candidates(3).filter(|one| one.member != home);
    let chosen = group.choose_member(&plan, others, 11 * SECOND, |_, _| {});
    assert_ne!(chosen.unwrap().member, home);
    let none = candidates(0);
    assert_eq!(group.choose_member(&plan, none, 0, |_, _| {}), None);
    // A member that was down knows nothing any more.
    group.forget_memory(home);
    let plan = group.plan_request(facts(&mut builder));
    assert!(plan.request_work().matches.is_empty());
}

#[test]
fn refusals_and_stalls_send_requests_elsewhere() {
    let group = group(2);
    let mut builder = scan(1, 20_000);
    serve(&group, &mut builder, 0, 0, 0.5, usage(5000, Some(0)));
    serve(&group, &mut builder, 1, 0, 0.5, usage(5000, Some(0)));
    let choose = |builder: &mut ChainBuilder, now: u64| {
        let plan = group.plan_request(facts(builder));
        let chosen = group.choose_member(&plan, candidates(2), now, |_, _| {});
        chosen.unwrap().member
    };
    group.mark_full(0, 20 * SECOND);
    assert_eq!(choose(&mut builder, 19 * SECOND), 1);
    group.mark_full(1, 40 * SECOND);
    assert_eq!(choose(&mut builder, 30 * SECOND), 0);
    // Member 0 does not answer one that has nothing to be read.
    let plan = group.plan_request(facts(&mut builder));
    let mut stalled = group.begin_request(&plan, 0, 50 * SECOND).unwrap();
    assert_eq!(choose(&mut builder, 55 * SECOND), 1);
    let result = group.finish_request(&mut stalled, &AnswerEnd::default(), 55 * SECOND);
    assert_eq!(result, None);
    group.finish_request(&mut stalled, &complete(None), 56 * SECOND);
    for queue in group.member_queues() {
        assert_eq!(queue.read_moment(0.0, 1.0, 60 * SECOND).waiting, 0.0);
        assert_eq!(queue.read_moment(0.0, 1.0, 60 * SECOND).streams, 0.0);
    }
}

#[test]
fn a_slow_member_is_found_out_by_its_answers() {
    let group = group(2);
    for turn in 0..40 {
        for (member, factor) in [(0, 1.0), (1, 4.0)] {
            let mut builder = scan(turn * 2 + member as u64, 20_000);
            let first = 0.5 * factor;
            let answer = usage(5000, Some(0));
            serve(
                &group,
                &mut builder,
                member,
                turn * 10 * SECOND,
                first,
                answer,
            );
        }
        assert_eq!(group.keep_up(0, 8, turn * 10 * SECOND), 8);
    }
    let [fast, slow] = [0, 1].map(|member| group.member_speeds()[member].get());
    assert!(slow.read > 3.0 * fast.read, "{fast:?} {slow:?}");
    assert!((group.token_figures().tokens_per_byte(0) - 0.25).abs() < 0.01);
    let mut builder = scan(1000, 20_000);
    let plan = group.plan_request(facts(&mut builder));
    let mut costs = Vec::new();
    let chosen = group.choose_member(&plan, candidates(2), 400 * SECOND, |_, parts| {
        costs.push(parts.total());
    });
    assert_eq!(chosen.unwrap().member, 0);
    assert!(costs[1] > 1.2 * costs[0], "{costs:?}");
    // Another member in its place is like the fleet.
    group.forget_member(1);
    assert!(group.member_speeds()[1].get().read < slow.read);
}

#[test]
fn without_cached_tokens_the_first_token_tells() {
    use PredictionResult::{Forgotten, Restarted, Right};
    let group = group(1);
    let mut builder = scan(1, 40_000);
    for turn in 0..20 {
        let mut other = scan(100 + turn, 40_000);
        serve(
            &group,
            &mut other,
            0,
            turn * 10 * SECOND,
            1.0,
            usage(10_000, None),
        );
    }
    let mut now = 200 * SECOND;
    let mut turn = |builder: &mut ChainBuilder, first: f32| {
        now += 10 * SECOND;
        serve(&group, builder, 0, now, first, None)
    };
    assert_eq!(turn(&mut builder, 1.0), None);
    assert_eq!(turn(&mut builder, 0.05), Some(Right));
    let results = [(); 3].map(|()| turn(&mut builder, 1.1));
    assert_eq!(results, [Some(Forgotten), Some(Forgotten), Some(Restarted)]);
    assert!(
        group
            .plan_request(facts(&mut builder))
            .request_work()
            .matches
            .is_empty()
    );
}

/// A member whose span has become too short looks like any other by the span. What was found at the prompt's age still draws
/// the request to the member, so that answers go on to tell what the member remembers.
#[test]
fn a_prompt_that_is_found_beyond_the_span_draws_its_request() {
    let group = group(2);
    let memory = &group.member_memories()[0];
    let mut builder = scan(1, 40_000);
    let mut known = Vec::new();
    for turn in 0..12 {
        let now = 40 * turn * SECOND;
        for member in [0, 1] {
            let mut other = scan(100 + 2 * turn + member as u64, 80_000);
            let answer = usage(20_000, Some(0));
            serve(&group, &mut other, member, now, 2.0, answer);
        }
        memory.set_span(10_000);
        let plan = group.plan_request(facts(&mut builder));
        assert!(plan.request_work().matches.is_empty());
        let now = now + 20 * SECOND;
        let price = |one: &Candidate| group.price_request(&plan, one, now).known_tokens;
        let all: Vec<f32> = candidates(2).map(|one| price(&one)).collect();
        assert_eq!(all[1], 0.0);
        known.push(all[0]);
        if turn > 6 {
            let chosen = group.choose_member(&plan, candidates(2), now, |_, _| {});
            assert_eq!(chosen.unwrap().member, 0, "{known:?}");
        }
        let cached = if turn == 0 { 0 } else { 9_900 };
        serve(
            &group,
            &mut builder,
            0,
            now,
            0.1,
            usage(10_000, Some(cached)),
        );
    }
    assert_eq!(known[..2], [0.0, 0.0]);
    assert!(known[1..].is_sorted(), "{known:?}");
    assert!(known[11] > 5000.0, "{known:?}");
    // Another member in its place has another cache.
    group.forget_member(0);
    let plan = group.plan_request(facts(&mut builder));
    let first = candidates(1).next().unwrap();
    assert_eq!(group.price_request(&plan, &first, 0).known_tokens, 0.0);
}

#[test]
fn whole_answers_tell_the_pace() {
    let group = group(1);
    let mut builder = scan(1, 4000);
    for turn in 0..50 {
        let now = turn * 60 * SECOND;
        let facts = RequestFacts {
            is_stream: false,
            ..facts(&mut builder)
        };
        let plan = group.plan_request(facts);
        let mut request = group.begin_request(&plan, 0, now).unwrap();
        let waiting = group.member_queues()[0].read_moment(0.0, 1e-4, now + SECOND);
        assert_eq!((waiting.waiting, waiting.streams), (0.0, 1.0));
        let end = complete(usage(1000, Some(0)));
        group.finish_request(&mut request, &end, now + 5 * SECOND);
    }
    let write = group.member_speeds()[0].get().write;
    assert!((0.04..0.06).contains(&write), "{write}");
}

#[test]
fn several_answers_side_by_side_tell_the_pace_of_each() {
    for is_stream in [false, true] {
        let group = group(1);
        let mut builder = scan(1, 4000);
        for turn in 0..50 {
            let now = turn * 60 * SECOND;
            let facts = RequestFacts {
                is_stream,
                ..facts(&mut builder)
            };
            let plan = group.plan_request(facts);
            let single = plan.request_work().output_tokens;
            let plan = plan.with_choices(4);
            assert_eq!(plan.request_work().output_tokens, 4.0 * single);
            let mut request = group.begin_request(&plan, 0, now).unwrap();
            // Four answers of 25 tokens, of which each takes 0.2 seconds.
            for event in 0..100 {
                let at = now + SECOND / 10 + event * SECOND / 20;
                group.take_events(&mut request, u64::from(is_stream), at);
            }
            let end = AnswerEnd {
                events: if is_stream { 100 } else { 0 },
                ..complete(usage(1000, Some(0)))
            };
            group.finish_request(&mut request, &end, now + 5 * SECOND);
        }
        let write = group.member_speeds()[0].get().write;
        assert!((0.15..0.25).contains(&write), "{is_stream}: {write}");
        let output = group.token_figures().expected_output(0, None);
        assert!((20.0..45.0).contains(&output), "{output}");
    }
}

#[test]
fn members_that_do_not_exist_are_refused() {
    let group = group(1);
    let mut builder = scan(1, 4000);
    let plan = group.plan_request(facts(&mut builder));
    assert!(group.begin_request(&plan, 1, 0).is_none());
    let chosen = group.choose_member(&plan, candidates(2).skip(1), 0, |_, _| {});
    assert_eq!(chosen.unwrap().member, 1);
    group.mark_full(9, 1);
    group.forget_member(9);
}

proptest! {
    /// Requests in any order and with any answers leave nothing behind, and all costs are numbers.
    #[test]
    fn nothing_breaks_a_group(
        steps in prop::collection::vec(
            (0usize..3, 0usize..6, 0u8..4, any::<u32>(), any::<Option<u32>>(), any::<u64>(), any::<bool>()),
            0..60,
        ),
    ) {
        let group = group(3);
        let mut builders: Vec<_> = (0..3).map(|seed| scan(seed, 6000)).collect();
        let mut sent: [Option<SentRequest>; 6] = [None; 6];
        for (member, place, step, tokens, cached, now, is_stream) in steps {
            let facts = RequestFacts { is_stream, max_tokens: cached, ..facts(&mut builders[member]) };
            let plan = group.plan_request(facts);
            let chosen = group.choose_member(&plan, candidates(3), now, |_, parts| {
                assert!(!parts.total().is_nan());
            });
            prop_assert!(chosen.is_some());
            match (&mut sent[place], step) {
                (request @ None, _) => *request = group.begin_request(&plan, member, now),
                (Some(request), 0 | 1) => group.take_events(request, u64::from(tokens % 4), now),
                (request, step) => {
                    let end = AnswerEnd {
                        usage: usage(tokens.max(1), cached.map(|cached| cached.min(tokens.max(1)))),
                        events: u64::from(tokens),
                        is_complete: step == 2,
                    };
                    let mut request = request.take().unwrap();
                    group.finish_request(&mut request, &end, now);
                }
            }
            group.keep_up(place, 10, now);
        }
        for request in sent.iter_mut().flatten() {
            group.finish_request(request, &AnswerEnd::default(), 0);
        }
        for queue in group.member_queues() {
            let left = queue.read_moment(0.0, 1.0, 0);
            prop_assert_eq!((left.waiting, left.streams, left.queued_tokens), (0.0, 0.0, 0.0));
        }
    }
}

#[test]
fn a_beginning_that_many_requests_share_gets_a_further_copy_and_a_conversation_does_not() {
    let choose = |group: &EngineGroup, builder: &mut ChainBuilder, now: u64| {
        let plan = group.plan_request(facts(builder));
        let chosen = group.choose_member(&plan, candidates(3), now, |_, _| {});
        let chosen = chosen.unwrap();
        group.learn_choice(&plan, candidates(3), &chosen, now);
        chosen.member
    };
    // The holder has a stream more than the others: no reason to read all of the prompt elsewhere for one request.
    let make_busy = |group: &EngineGroup| {
        serve(
            group,
            &mut scan(1, 40_000),
            0,
            0,
            1.0,
            usage(10_000, Some(0)),
        );
        let mut other = scan(99, 9000);
        let plan = group.plan_request(facts(&mut other));
        let mut request = group.begin_request(&plan, 0, 5 * SECOND).unwrap();
        group.take_events(&mut request, 1, 6 * SECOND);
        request
    };
    let popular = group(3);
    let mut busy = make_busy(&popular);
    let turns = (0..100).find(|turn| {
        let now = 10 * SECOND + turn * SECOND / 2;
        choose(&popular, &mut scan(1, 40_000), now) != 0
    });
    let turns = turns.unwrap();
    assert!(turns > 1, "{turns}");
    // The credit is spent.
    assert_eq!(choose(&popular, &mut scan(1, 40_000), 61 * SECOND), 0);
    popular.finish_request(&mut busy, &AnswerEnd::default(), 61 * SECOND);
    // A conversation grows with each turn, and a request that comes now and then has paid for nothing.
    let growing = group(3);
    let mut busy = make_busy(&growing);
    for turn in 0..100 {
        let now = (10 + turn) * SECOND;
        let mut builder = scan(1, 40_000 + 1000 * turn as usize);
        assert_eq!(choose(&growing, &mut builder, now), 0, "{turn}");
        let plan = growing.plan_request(facts(&mut builder));
        let mut request = growing.begin_request(&plan, 0, now).unwrap();
        growing.finish_request(&mut request, &AnswerEnd::default(), now);
    }
    growing.finish_request(&mut busy, &AnswerEnd::default(), 200 * SECOND);
    let rare = group(3);
    let mut busy = make_busy(&rare);
    for turn in 0..20 {
        let now = (100 + 60 * turn) * SECOND;
        assert_eq!(choose(&rare, &mut scan(1, 40_000), now), 0, "{turn}");
    }
    rare.finish_request(&mut busy, &AnswerEnd::default(), 2000 * SECOND);
}

#[test]
fn prompts_of_other_balancers_are_known() {
    let (one, other) = (group(3), group(3));
    let now = SECOND;
    let mut builder = scan(5, 40_000);
    // A log that nobody follows takes no memory.
    one.stop_following_prompts();
    assert!(one.sent.get().is_none());
    // What is sent before somebody follows is not noted.
    let plan = one.plan_request(facts(&mut builder));
    one.begin_request(&plan, 0, now).unwrap();
    assert!(one.follow_prompts().take_prompts(9).prompts.is_empty());
    let mut builder = scan(6, 40_000);
    let plan = one.plan_request(facts(&mut builder));
    let sent = one.begin_request(&plan, 2, now).unwrap();
    let taken = one.follow_prompts().take_prompts(9).prompts;
    let [prompt] = taken.as_slice() else {
        panic!("{taken:?}");
    };
    assert_eq!(prompt.member, sent.member_number());
    assert_eq!(prompt.links, builder.link_blocks().block_links());
    let tokens = plan_tokens(&one, &mut builder);
    assert!((prompt.unread_tokens as f32 - tokens).abs() < 0.01 * tokens);

    let known = |group: &EngineGroup, builder: &mut ChainBuilder| {
        let plan = group.plan_request(facts(builder));
        [0, 1, 2].map(|member| plan.blocks_of(member))
    };
    assert_eq!(known(&other, &mut builder), [0; 3]);
    let clock = |group: &EngineGroup| group.member_memories()[2].current_stamp();
    let before = clock(&other);
    other.record_elsewhere(&prompt.links, 2, prompt.unread_tokens);
    assert_eq!(known(&other, &mut builder), [0, 0, prompt.links.len()]);
    // The engine has read these tokens, and remembers other prompts for so much shorter.
    assert!(clock(&other) > before);
    // No such member: nothing happens.
    other.record_elsewhere(&prompt.links, 7, prompt.unread_tokens);
    // What is heard is not told again.
    assert!(other.follow_prompts().take_prompts(9).prompts.is_empty());
}

/// Tokens that the group guesses a prompt to have.
fn plan_tokens(group: &EngineGroup, builder: &mut ChainBuilder) -> f32 {
    group.plan_request(facts(builder)).work.prompt_tokens
}
