//! State of one cluster, and what follows from it: no I/O, time as an argument.

use std::time::Duration;

use evenkeel_config::Origin;
use evenkeel_core::time::Instant;
use evenkeel_wire::negotiation::{self, Binding};

/// Longest quantum that is believed.
const LONGEST_QUANTUM: Duration = Duration::from_secs(86_400);

/// Most servers that are remembered beside the server in use.
const MOST_OTHERS: usize = negotiation::MOST_MEMBERS;

/// First and longest pause after a negotiation that nobody answered.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Share of the quantum after which the next server is negotiated, so that no client has
/// to wait for it.
const RENEW_AT: f32 = 0.8;

/// Time for which a cluster counts as in use after a client.
const IN_USE: Duration = Duration::from_secs(10);

/// Time for which a server that did not accept a connection is not asked for again.
const DEAD_FOR: Duration = Duration::from_secs(30);

/// A server, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineServer {
    /// Name of the server at the broker.
    pub name: String,
    /// Origin that the server's clients go to.
    pub origin: Origin,
}

/// A broker's answer that is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBinding {
    /// The answer is about another cluster.
    #[error("the answer is about cluster {0:?}")]
    OtherCluster(String),
    /// A server is not named by a URL of scheme, host and port.
    #[error("{0:?} is not a URL of a server")]
    Url(String),
    /// A name that could not be said again.
    #[error("{0:?} is not a name of a server")]
    Name(String),
    /// The session id is not valid.
    #[error("the session id is not valid")]
    Session,
}

impl EngineServer {
    fn of(server: &negotiation::Server) -> Result<EngineServer, BadBinding> {
        let shorten = |text: &str| text.chars().take(100).collect();
        let named = (1..=400).contains(&server.name.len())
            && server
                .name
                .bytes()
                .all(|b| b.is_ascii_graphic() && b != b',');
        if !named {
            return Err(BadBinding::Name(shorten(&server.name)));
        }
        match server.url.parse() {
            Ok(origin) => Ok(EngineServer {
                name: server.name.clone(),
                origin,
            }),
            Err(_) => Err(BadBinding::Url(shorten(&server.url))),
        }
    }
}

/// Answer that a client gets now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Now {
    /// The client uses this server, for this time.
    Use(EngineServer, Duration),
    /// The client gets nothing, before so long is over.
    Refused(Duration),
    /// The client waits for what the next negotiation brings.
    Wait,
}

/// State of a cluster.
#[derive(Debug)]
pub struct ClusterState {
    cluster: String,
    stale_for: Duration,
    held: Option<Held>,
    /// Servers that would do, the last known first, and since when they are known.
    others: Vec<(EngineServer, Instant)>,
    /// Servers that did not accept a connection, and when.
    dead: Vec<(String, Instant)>,
    session: Option<String>,
    /// No negotiation before.
    pause_until: Option<Instant>,
    pause: Duration,
    /// Until when the broker said no.
    refused_until: Option<Instant>,
    /// The last negotiation was not answered.
    outage: bool,
    used: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Held {
    place: EngineServer,
    since: Instant,
    until: Instant,
}

impl ClusterState {
    /// Makes the state of a cluster of which nothing is known.
    pub fn new(cluster: &str, stale_for: Duration) -> Self {
        ClusterState {
            cluster: cluster.into(),
            stale_for,
            held: None,
            others: Vec::new(),
            dead: Vec::new(),
            session: None,
            pause_until: None,
            pause: FIRST_PAUSE,
            refused_until: None,
            outage: false,
            used: None,
        }
    }

    /// Returns what a client gets that asks now.
    pub fn answer_client(&mut self, now: Instant) -> Now {
        self.used = Some(now);
        // To a server that is dead nobody is sent for the rest of the quantum.
        if let Some(held) = &self.held
            && now < held.until
            && !self.needs_another(now)
        {
            return Now::Use(held.place.clone(), held.until.since(now));
        }
        if let Some(until) = self.refused_until.filter(|&until| now < until) {
            return Now::Refused(until.since(now));
        }
        if self.outage
            && let Some(held) = &self.held
            && now < held.until.after(self.stale_for)
        {
            return Now::Use(held.place.clone(), Duration::ZERO);
        }
        match self.pause_until {
            Some(until) if now < until => Now::Refused(until.since(now)),
            _ => Now::Wait,
        }
    }

    /// Returns what a client gets that has waited for a negotiation which is now over.
    pub fn after_waiting(&mut self, now: Instant) -> Now {
        match self.answer_client(now) {
            // A quantum of 0 is over at once; it was for this client.
            Now::Wait => match &self.held {
                Some(held) => Now::Use(held.place.clone(), Duration::ZERO),
                None => Now::Refused(FIRST_PAUSE),
            },
            other => other,
        }
    }

    /// True if a client has asked lately.
    pub fn is_in_use(&self, now: Instant) -> bool {
        self.used.is_some_and(|used| now.since(used) < IN_USE)
    }

    /// Returns the server in use.
    pub fn server_in_use(&self) -> Option<&EngineServer> {
        self.held.as_ref().map(|held| &held.place)
    }

    /// Returns when to negotiate, if nobody asks before; `None` as long as no client asks.
    pub fn next_negotiation(&self, now: Instant) -> Option<Instant> {
        if !self.is_in_use(now) {
            return None;
        }
        let wanted = match &self.held {
            // What is used meanwhile has no quantum.
            _ if self.outage => now,
            Some(held) if !self.is_dead(&held.place.name, now) => {
                let quantum = held.until.since(held.since);
                // That of nothing is renewed for those who ask.
                if quantum.is_zero() {
                    return None;
                }
                held.since.after(quantum.mul_f32(RENEW_AT))
            }
            _ => now,
        };
        let not_before = self.pause_until.into_iter().chain(self.refused_until);
        Some(not_before.fold(wanted, Instant::max))
    }

    /// True if a negotiation may begin now.
    pub fn may_negotiate(&self, now: Instant) -> bool {
        let mut not_before = self.pause_until.into_iter().chain(self.refused_until);
        not_before.all(|until| until <= now)
    }

    /// Returns the session id to go on with.
    pub fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Names of servers to stay away from.
    pub fn avoid(&self, now: Instant) -> Vec<&str> {
        let dead = self.dead.iter().filter(|(_, at)| now.since(*at) < DEAD_FOR);
        dead.map(|(name, _)| name.as_str())
            .take(negotiation::MOST_MEMBERS)
            .collect()
    }

    /// Takes the answer of a broker.
    ///
    /// # Errors
    ///
    /// The answer cannot be believed. Nothing has changed.
    pub fn apply_binding(&mut self, binding: &Binding, now: Instant) -> Result<(), BadBinding> {
        if binding.cluster != self.cluster {
            let other = binding.cluster.chars().take(100).collect();
            return Err(BadBinding::OtherCluster(other));
        }
        if !negotiation::is_session(&binding.session) {
            return Err(BadBinding::Session);
        }
        let place = EngineServer::of(&binding.server)?;
        let others = binding.alternatives.iter().take(MOST_OTHERS);
        let others = others
            .map(EngineServer::of)
            .collect::<Result<Vec<_>, _>>()?;

        for other in others {
            self.remember(other, now);
        }
        self.forget(&place.name);
        let quantum = Duration::from_secs(binding.quantum_seconds).min(LONGEST_QUANTUM);
        self.replace(
            Held {
                place,
                since: now,
                until: now.after(quantum),
            },
            now,
        );
        self.session = Some(binding.session.clone());
        self.answered();
        self.refused_until = None;
        Ok(())
    }

    /// Notes that a broker has said no, and when to ask again.
    pub fn note_refusal(&mut self, after: Duration, now: Instant) {
        self.answered();
        let after = after.clamp(FIRST_PAUSE, Duration::from_secs(3600));
        self.refused_until = Some(now.after(after));
    }

    /// Notes that no broker has given an answer.
    pub fn note_silence(&mut self, now: Instant, rng: &mut fastrand::Rng) {
        self.outage = true;
        // Engines that lost their broker together shall not come back together.
        let jitter = 0.5 + rng.f32();
        self.pause_until = Some(now.after(self.pause.mul_f32(jitter)));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn answered(&mut self) {
        self.outage = false;
        self.pause_until = None;
        self.pause = FIRST_PAUSE;
    }

    /// Notes that the server called `name` does not accept connections. If this is the server in use, the
    /// next negotiation is due.
    pub fn server_failed(&mut self, name: &str, now: Instant) {
        self.dead
            .retain(|(known, at)| known != name && now.since(*at) < DEAD_FOR);
        self.dead.push((name.into(), now));
    }

    /// Returns the other servers that may be alive, for when the server in use is dead and no broker answers.
    /// Servers that were dead when they were last looked at come last: they may be back.
    pub fn candidates(&self, now: Instant) -> Vec<EngineServer> {
        let others = self.others.iter();
        let known = others.filter(|(_, since)| now.since(*since) < self.stale_for);
        let (mut first, last): (Vec<_>, Vec<_>) = known
            .map(|(place, _)| place.clone())
            .partition(|place| !self.is_dead(&place.name, now));
        first.extend(last);
        first
    }

    /// Uses a candidate that accepts connections until a broker answers.
    pub fn fall_back(&mut self, place: EngineServer, now: Instant) {
        self.forget(&place.name);
        self.replace(
            Held {
                place,
                since: now,
                until: now,
            },
            now,
        );
    }

    /// True if the server in use has failed.
    pub fn needs_another(&self, now: Instant) -> bool {
        self.server_in_use()
            .is_some_and(|place| self.is_dead(&place.name, now))
    }

    fn is_dead(&self, name: &str, now: Instant) -> bool {
        let mut dead = self.dead.iter();
        dead.any(|(known, at)| known == name && now.since(*at) < DEAD_FOR)
    }

    fn replace(&mut self, held: Held, now: Instant) {
        if let Some(before) = self.held.take()
            && before.place.name != held.place.name
        {
            self.remember(before.place, now);
        }
        // A broker that gives it again knows better, or has nothing else.
        self.dead.retain(|(name, _)| *name != held.place.name);
        self.held = Some(held);
    }

    fn remember(&mut self, place: EngineServer, now: Instant) {
        self.forget(&place.name);
        self.others.insert(0, (place, now));
        self.others.truncate(MOST_OTHERS);
    }

    fn forget(&mut self, name: &str) {
        self.others.retain(|(other, _)| other.name != name);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(seconds: f64) -> Instant {
        Instant::from_nanos((seconds * 1e9) as u64)
    }

    fn server(name: &str) -> negotiation::Server {
        negotiation::Server {
            name: format!("{name}:80"),
            address: "192.0.2.1:80".parse().unwrap(),
            url: format!("http://{name}.example"),
        }
    }

    fn binding(name: &str, quantum: u64, others: &[&str]) -> Binding {
        Binding {
            cluster: "shop".into(),
            class: None,
            server: server(name),
            quantum_seconds: quantum,
            session: "s-1".into(),
            alternatives: others.iter().map(|name| server(name)).collect(),
        }
    }

    fn place(name: &str) -> EngineServer {
        EngineServer::of(&server(name)).unwrap()
    }

    fn state() -> ClusterState {
        ClusterState::new("shop", HOUR)
    }

    #[test]
    fn a_quantum_is_used_to_its_end_and_renewed_before() {
        let mut state = state();
        assert_eq!(state.next_negotiation(at(1.0)), None, "nobody has asked");
        assert_eq!(state.answer_client(at(1.0)), Now::Wait);
        assert_eq!(state.next_negotiation(at(1.0)), Some(at(1.0)));
        state
            .apply_binding(&binding("a", 30, &[]), at(1.0))
            .unwrap();
        let rest = Duration::from_secs(29);
        assert_eq!(state.answer_client(at(2.0)), Now::Use(place("a"), rest));
        let renewal = state.next_negotiation(at(2.0)).unwrap();
        assert!((24.9..25.1).contains(&renewal.as_secs_f64()), "{renewal:?}");
        assert_eq!(
            state.next_negotiation(at(13.0)),
            None,
            "nobody has asked lately"
        );
        assert_eq!(state.answer_client(at(31.0)), Now::Wait);
        assert_eq!(state.session(), Some("s-1"));
    }

    #[test]
    fn a_quantum_of_nothing_is_for_one_client() {
        let mut state = state();
        assert_eq!(state.answer_client(at(1.0)), Now::Wait);
        state.apply_binding(&binding("a", 0, &[]), at(1.0)).unwrap();
        let once = Now::Use(place("a"), Duration::ZERO);
        assert_eq!(state.after_waiting(at(1.0)), once);
        assert_eq!(state.answer_client(at(1.1)), Now::Wait);
        assert_eq!(
            state.next_negotiation(at(1.1)),
            None,
            "only for those who ask"
        );
    }

    #[test]
    fn nobody_is_sent_to_a_dead_server_for_the_rest_of_its_quantum() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut state = state();
        state
            .apply_binding(&binding("a", 30, &[]), at(1.0))
            .unwrap();
        state.server_failed("a:80", at(2.0));
        assert_eq!(
            state.answer_client(at(2.0)),
            Now::Wait,
            "a broker knows another one"
        );
        // It knows none, and says when to ask again.
        state.note_refusal(Duration::from_secs(5), at(2.0));
        let later = Now::Refused(Duration::from_secs(4));
        assert_eq!(state.answer_client(at(3.0)), later);
        assert_eq!(state.after_waiting(at(3.0)), later);
        // Without a broker it is all that there is: perhaps it is back, perhaps soon not.
        assert_eq!(state.answer_client(at(7.5)), Now::Wait);
        state.note_silence(at(7.5), &mut rng);
        let once = Now::Use(place("a"), Duration::ZERO);
        assert_eq!(state.answer_client(at(7.6)), once);
        state
            .apply_binding(&binding("b", 30, &[]), at(8.0))
            .unwrap();
        let rest = Duration::from_secs(29);
        assert_eq!(state.answer_client(at(9.0)), Now::Use(place("b"), rest));
    }

    #[test]
    fn an_outage_is_bridged_and_has_an_end() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut state = state();
        state.answer_client(at(1.0));
        state
            .apply_binding(&binding("a", 10, &[]), at(1.0))
            .unwrap();
        state.note_silence(at(9.0), &mut rng);
        let fresh = Now::Use(place("a"), Duration::from_secs(1));
        assert_eq!(state.answer_client(at(10.0)), fresh, "the quantum counts");
        assert_eq!(
            state.answer_client(at(12.0)),
            Now::Use(place("a"), Duration::ZERO)
        );
        assert_eq!(
            state.answer_client(at(3610.0)),
            Now::Use(place("a"), Duration::ZERO)
        );
        state.note_silence(at(3612.0), &mut rng);
        assert!(matches!(state.answer_client(at(3612.0)), Now::Refused(_)));

        let mut longest = Duration::ZERO;
        for attempt in 0..20 {
            let now = at(4000.0 + 100.0 * f64::from(attempt));
            state.answer_client(now);
            state.note_silence(now, &mut rng);
            assert!(!state.may_negotiate(now));
            let pause = state.next_negotiation(now).unwrap().since(now);
            assert!(pause <= LONGEST_PAUSE.mul_f32(1.5), "{pause:?}");
            longest = longest.max(pause);
        }
        assert!(longest > LONGEST_PAUSE / 2);
        state
            .apply_binding(&binding("a", 10, &[]), at(9000.0))
            .unwrap();
        assert!(state.may_negotiate(at(9000.0)));
    }

    #[test]
    fn a_refusal_is_no_outage() {
        let mut state = state();
        state.answer_client(at(1.0));
        state
            .apply_binding(&binding("a", 10, &[]), at(1.0))
            .unwrap();
        state.note_refusal(Duration::from_secs(5), at(9.0));
        assert!(
            matches!(state.answer_client(at(10.0)), Now::Use(..)),
            "the quantum counts"
        );
        assert_eq!(
            state.answer_client(at(12.0)),
            Now::Refused(Duration::from_secs(2))
        );
        assert_eq!(state.next_negotiation(at(12.0)), Some(at(14.0)));
        assert_eq!(state.answer_client(at(14.0)), Now::Wait);
    }

    #[test]
    fn another_server_is_used_when_one_dies() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut state = state();
        state.answer_client(at(1.0));
        state
            .apply_binding(&binding("a", 100, &["b", "c"]), at(1.0))
            .unwrap();
        state.server_failed("a:80", at(2.0));
        assert!(state.needs_another(at(2.0)));
        assert_eq!(state.next_negotiation(at(2.0)), Some(at(2.0)), "at once");
        assert_eq!(state.avoid(at(2.0)), ["a:80"]);
        // The broker is away, too.
        state.note_silence(at(2.0), &mut rng);
        assert_eq!(state.candidates(at(2.0)), [place("c"), place("b")]);
        state.server_failed("c:80", at(2.1));
        state.fall_back(place("b"), at(2.2));
        assert!(state.next_negotiation(at(2.2)).is_some());
        assert_eq!(
            state.answer_client(at(3.0)),
            Now::Use(place("b"), Duration::ZERO)
        );
        let dead = [place("a"), place("c")];
        assert_eq!(state.candidates(at(3.0)), dead, "they may be back");
        // It is back, and gives the first one again.
        state
            .apply_binding(&binding("a", 100, &[]), at(4.0))
            .unwrap();
        assert!(!state.needs_another(at(4.0)));
        assert_eq!(state.candidates(at(4.0)), [place("b"), place("c")]);
    }

    #[test]
    fn answers_that_make_no_sense_change_nothing() {
        let mut state = state();
        state.answer_client(at(1.0));
        state
            .apply_binding(&binding("a", 10, &[]), at(1.0))
            .unwrap();
        let good = binding("b", 10, &["c"]);
        let with = |change: &dyn Fn(&mut Binding)| {
            let mut bad = good.clone();
            change(&mut bad);
            bad
        };
        for bad in [
            with(&|b| b.cluster = "other".into()),
            with(&|b| b.session = "a\r\nb".into()),
            with(&|b| b.server.url = "http://a/b".into()),
            with(&|b| b.server.url = "javascript://a".into()),
            with(&|b| b.server.name = "a,b".into()),
            with(&|b| b.alternatives[0].url = String::new()),
        ] {
            assert!(state.apply_binding(&bad, at(2.0)).is_err());
        }
        assert!(matches!(state.answer_client(at(2.0)), Now::Use(found, _) if found == place("a")));
        state
            .apply_binding(&binding("b", u64::MAX, &[]), at(2.0))
            .unwrap();
        assert_eq!(
            state.answer_client(at(2.0)),
            Now::Use(place("b"), LONGEST_QUANTUM)
        );
    }

    #[derive(Clone, Debug)]
    enum Step {
        Ask,
        Bound(u8, u64, Vec<u8>),
        Refused(u64),
        Unanswered,
        Failed(u8),
        FallBack,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Ask),
            (0u8..5, 0u64..100, prop::collection::vec(0u8..5, 0..4))
                .prop_map(|(n, quantum, others)| Step::Bound(n, quantum, others)),
            (0u64..100).prop_map(Step::Refused),
            Just(Step::Unanswered),
            (0u8..5).prop_map(Step::Failed),
            Just(Step::FallBack),
        ]
    }

    proptest! {
        /// Whatever happens, a server is used only while it may be, and a client that is told to wait does
        /// not wait for a negotiation that may not begin.
        #[test]
        fn nobody_waits_for_nothing(
            steps in prop::collection::vec((any_step(), 0u64..200), 1..40),
            seed in any::<u64>(),
        ) {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut state = ClusterState::new("shop", Duration::from_secs(60));
            let mut now = at(1.0);
            let name = |n: u8| format!("m{n}");
            for (step, seconds) in steps {
                now = now.after(Duration::from_secs(seconds));
                match step {
                    Step::Ask => {}
                    Step::Bound(n, quantum, others) => {
                        let others: Vec<_> = others.into_iter().map(name).collect();
                        let others: Vec<_> = others.iter().map(String::as_str).collect();
                        state.apply_binding(&binding(&name(n), quantum, &others), now).unwrap();
                    }
                    Step::Refused(seconds) => state.note_refusal(Duration::from_secs(seconds), now),
                    Step::Unanswered => state.note_silence(now, &mut rng),
                    Step::Failed(n) => state.server_failed(&format!("{}:80", name(n)), now),
                    Step::FallBack => {
                        if let Some(place) = state.candidates(now).pop() {
                            state.fall_back(place, now);
                        }
                    }
                }
                match state.answer_client(now) {
                    Now::Wait => prop_assert!(state.may_negotiate(now)),
                    Now::Refused(rest) => prop_assert!(!rest.is_zero()),
                    Now::Use(_, rest) => {
                        let held = state.held.as_ref().unwrap();
                        prop_assert!(rest <= LONGEST_QUANTUM);
                        prop_assert!(now < held.until.after(state.stale_for).after(Duration::from_nanos(1)));
                    }
                }
                let next = state.next_negotiation(now);
                prop_assert!(next.is_none_or(|next| state.may_negotiate(next)));
                prop_assert!(!state.outage || next.is_some(), "the broker is not given up");
                prop_assert!(state.others.len() <= MOST_OTHERS);
                prop_assert!(state.avoid(now).len() <= negotiation::MOST_MEMBERS);
            }
        }
    }
}
