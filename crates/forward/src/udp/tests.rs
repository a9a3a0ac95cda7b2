use super::*;

const LINGER: Duration = Duration::from_secs(30);

fn end_of(change: impl FnOnce(&mut State, &mut Option<Limits>)) -> Option<UdpEnd> {
    let mut state = State {
        is_open: true,
        is_answered: true,
        is_copied: false,
        is_quic: false,
        is_single: false,
        leaves: false,
        silence: Duration::from_secs(5),
        age: Duration::from_secs(60),
    };
    let terms = UdpTerms {
        answer_timeout: Duration::from_secs(2),
        expects_answer: true,
        is_quic: false,
        is_single: false,
    };
    let mut limits = Some(Limits {
        idle: Duration::from_secs(10),
        terms,
    });
    change(&mut state, &mut limits);
    find_end(state, limits, LINGER)
}

const IDLE: Option<UdpEnd> = Some(UdpEnd::Idle);
const SILENT: Option<UdpEnd> = Some(UdpEnd::Silent);

#[test]
fn s41_sessions_end_as_those_of_the_proxy() {
    assert_eq!(end_of(|_, _| {}), None);
    let idle = Duration::from_secs(11);
    assert_eq!(end_of(|state, _| state.silence = idle), IDLE);
    // An answer counts from the first datagram on, though others have come.
    assert_eq!(end_of(|state, _| state.is_answered = false), SILENT);
    let late = |state: &mut State, _: &mut Option<Limits>| {
        state.is_answered = false;
        state.age = Duration::from_secs(1);
    };
    assert_eq!(end_of(late), None);
    // Without answers, a session is over when it is idle.
    let expects_none = |state: &mut State, limits: &mut Option<Limits>| {
        state.is_answered = false;
        limits.as_mut().unwrap().terms.expects_answer = false;
    };
    assert_eq!(end_of(expects_none), None);
    let ends = end_of(|state, limits| {
        expects_none(state, limits);
        state.silence = idle;
    });
    assert_eq!(ends, IDLE);
}

#[test]
fn s41_sessions_that_leave_wait_for_answers_under_way() {
    assert_eq!(end_of(|state, _| state.leaves = true), IDLE);
    let waits = |state: &mut State, _: &mut Option<Limits>| {
        state.leaves = true;
        state.silence = Duration::from_secs(1);
    };
    assert_eq!(end_of(waits), None);
    let ends = end_of(|state, _| (state.leaves, state.is_answered) = (true, false));
    assert_eq!(ends, SILENT);
    // The rule is gone.
    assert_eq!(end_of(|_, limits| *limits = None), IDLE);
    let waits = end_of(|state, limits| {
        state.silence = Duration::from_secs(1);
        *limits = None;
    });
    assert_eq!(waits, None);
    // The proxy may ask for the connection ids.
    let gone = |silence| {
        end_of(|state, limits| {
            (state.is_quic, state.silence) = (true, Duration::from_secs(silence));
            *limits = None;
        })
    };
    assert_eq!((gone(30), gone(31)), (None, IDLE));
}

#[test]
fn s41_sessions_that_have_ended_stay_for_a_while() {
    let closed = |silence| {
        end_of(|state, _| {
            state.is_open = false;
            state.silence = Duration::from_secs(silence);
        })
    };
    assert_eq!((closed(30), closed(31)), (None, IDLE));
}

#[test]
fn s41_ports_of_datagrams_without_an_answer_rest_for_long() {
    let ended = |silence, is_answered, linger| {
        let state = State {
            is_open: false,
            is_answered,
            is_copied: false,
            is_quic: false,
            is_single: true,
            leaves: false,
            silence: Duration::from_secs(silence),
            age: Duration::from_secs(60),
        };
        find_end(state, None, Duration::from_secs(linger))
    };
    // Also if the table is nearly full.
    assert_eq!((ended(4, true, 3), ended(4, false, 3)), (IDLE, None));
    assert_eq!((ended(30, false, 3), ended(31, false, 3)), (None, IDLE));
    assert_eq!((ended(4, true, 30), ended(31, true, 30)), (None, IDLE));
}

#[test]
fn s41_copies_of_sessions_stay_for_a_while_beyond_the_idle_time() {
    let copied = |silence, is_answered| {
        end_of(|state, _| {
            (state.is_copied, state.is_answered) = (true, is_answered);
            state.silence = Duration::from_secs(silence);
        })
    };
    assert_eq!((copied(39, true), copied(39, false)), (None, None));
    assert_eq!((copied(41, true), copied(41, false)), (IDLE, IDLE));
}
