//! Sessions of users who are logged in, and counts of failed logins.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_manager::auth::{MAX_PASSWORD, MAX_USER};
use evenkeel_manager::config::Admin;
use evenkeel_net::network::network_of;
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;

use crate::actor::{Actor, Role};
use crate::users::{User, Users, sha256};

/// Most logins at a time; for another login, the session that was used longest ago ends.
const MAX_SESSIONS: usize = 1000;

/// Failures of an address before it must wait.
const FREE_FAILURES: u32 = 5;

/// Failures of a user, wherever they come from, before everybody must wait who is not logged in.
const FREE_FAILURES_OF_USER: u32 = 50;

/// The first wait. Each further failure doubles it.
const FIRST_WAIT: Duration = Duration::from_secs(10);
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// After so long without a failure all is forgotten.
const FORGET: Duration = Duration::from_secs(30 * 60);

/// Most addresses and users whose failures are counted.
const MAX_COUNTED: usize = 10_000;

/// Most networks and users whose logins are remembered.
const MAX_WELCOME: usize = 1000;

/// Passwords that are checked at a time, and most that wait for that: each takes 19 MiB or what its hash says,
/// and a tenth of a second of a core.
const CHECKS: usize = 2;
const MAX_WAITING: usize = 16;

/// Users, sessions and failures, which say who may come in.
#[derive(Debug)]
pub(crate) struct Access {
    /// Users of the configuration that is in effect.
    users: Arc<ArcSwapOption<Users>>,
    sessions: Mutex<Sessions>,
    failures: Mutex<Failures>,
    /// Permits, one for each password that is being checked.
    checks: Arc<Semaphore>,
    /// Permits, one for each password that is being checked or waits to be checked.
    queue: Semaphore,
    idle: Duration,
    lifetime: Duration,
}

/// A new login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    /// The value of the cookie.
    pub(crate) cookie: String,
    /// Second secret of the session, which requests that change anything must carry.
    pub(crate) csrf: String,
    pub(crate) role: Role,
}

/// Reason why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLogin {
    /// The name or the password is wrong.
    Wrong,
    /// There are no users.
    NoUsers,
    /// There were too many failures: not before so long from now.
    Wait(Duration),
    /// Too many passwords are being checked.
    Busy,
    /// The system gives no random numbers.
    NoRandom,
}

/// Session of a user who is logged in.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) user: String,
    pub(crate) csrf: String,
    /// The user's line when the session began: it ends when that changes.
    was: User,
    begun: Instant,
    used: Instant,
}

#[derive(Debug, Default)]
struct Sessions {
    /// By SHA-256 of the cookie, so that the time of a search tells nothing.
    by_cookie: HashMap<[u8; 32], Session>,
}

impl Access {
    pub(crate) fn new(settings: &Admin, users: Arc<ArcSwapOption<Users>>) -> Self {
        Access {
            users,
            sessions: Mutex::default(),
            failures: Mutex::default(),
            checks: Arc::new(Semaphore::new(CHECKS)),
            queue: Semaphore::new(CHECKS + MAX_WAITING),
            idle: settings.session_idle,
            lifetime: settings.session_lifetime,
        }
    }

    /// Lets a user in whose password is right.
    pub(crate) async fn check_login(
        &self,
        name: &str,
        password: &str,
        from: IpAddr,
        now: Instant,
    ) -> Result<Login, NoLogin> {
        if name.len() > MAX_USER || password.len() > MAX_PASSWORD {
            return Err(self.refuse_long(name, from, now));
        }
        let Ok(_place) = self.queue.try_acquire() else {
            return Err(NoLogin::Busy);
        };
        let permit = Arc::clone(&self.checks).acquire_owned().await;
        // After those that were before it, whose failures count.
        if let Some(wait) = self.failures.lock().wait_time(name, from, now) {
            return Err(NoLogin::Wait(wait));
        }
        let users = self.users.load_full();
        let right = match (&users, permit) {
            (Some(users), Ok(permit)) => {
                let (users, name, password) =
                    (Arc::clone(users), name.to_owned(), password.to_owned());
                let check = move || {
                    let right = users.check_password(&name, &password);
                    drop(permit);
                    right
                };
                tokio::task::spawn_blocking(check).await.unwrap_or(false)
            }
            _ => false,
        };
        let user = users
            .as_ref()
            .and_then(|users| users.get(name))
            .filter(|_| right);
        let Some(user) = user else {
            self.failures.lock().count(name, from, now);
            return Err(NoLogin::Wrong);
        };
        self.failures.lock().forget_failures(name, from, now);
        self.begin_session(name, user, now)
    }

    /// Counts a login whose name or password is longer than any can be. Nothing is compared.
    fn refuse_long(&self, name: &str, from: IpAddr, now: Instant) -> NoLogin {
        let name = if name.len() > MAX_USER { "" } else { name };
        let mut failures = self.failures.lock();
        if let Some(wait) = failures.wait_time(name, from, now) {
            return NoLogin::Wait(wait);
        }
        failures.count(name, from, now);
        NoLogin::Wrong
    }

    /// True if there is a user of that name.
    pub(crate) fn is_user(&self, name: &str) -> bool {
        let users = self.users.load();
        users
            .as_ref()
            .is_some_and(|users| users.get(name).is_some())
    }

    fn begin_session(&self, name: &str, user: &User, now: Instant) -> Result<Login, NoLogin> {
        let random = || evenkeel_net::random_bytes::<32>().map_err(|_| NoLogin::NoRandom);
        let cookie = URL_SAFE_NO_PAD.encode(random()?);
        let csrf = URL_SAFE_NO_PAD.encode(random()?);
        let session = Session {
            user: name.to_owned(),
            csrf: csrf.clone(),
            was: user.clone(),
            begun: now,
            used: now,
        };
        let mut sessions = self.sessions.lock();
        sessions.retain(|session| self.is_alive(session, now));
        sessions.make_room();
        sessions
            .by_cookie
            .insert(sha256(cookie.as_bytes()), session);
        let role = user.role;
        Ok(Login { cookie, csrf, role })
    }

    fn is_alive(&self, session: &Session, now: Instant) -> bool {
        let users = self.users.load();
        let user = users.as_ref().and_then(|users| users.get(&session.user));
        now.duration_since(session.used) < self.idle
            && now.duration_since(session.begun) < self.lifetime
            && user == Some(&session.was)
    }

    /// Returns the session of a cookie and what its user may do. The question counts as a use of the session.
    pub(crate) fn use_session(&self, cookie: &str, now: Instant) -> Option<(Session, Role)> {
        let key = sha256(cookie.as_bytes());
        let mut sessions = self.sessions.lock();
        let session = sessions.by_cookie.get_mut(&key)?;
        if !self.is_alive(session, now) {
            sessions.by_cookie.remove(&key);
            return None;
        }
        session.used = now;
        Some((session.clone(), session.was.role))
    }

    /// Returns the session of a cookie and what its user may do. The question does not count as a use of the
    /// session.
    pub(crate) fn look_at(&self, cookie: &str, now: Instant) -> Option<(Session, Role)> {
        let sessions = self.sessions.lock();
        let session = sessions.by_cookie.get(&sha256(cookie.as_bytes()))?;
        let is_alive = self.is_alive(session, now);
        is_alive.then(|| (session.clone(), session.was.role))
    }

    /// Returns the longest time that a login lasts.
    pub(crate) fn session_lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Ends the session of a cookie.
    pub(crate) fn end_session(&self, cookie: &str) {
        self.sessions
            .lock()
            .by_cookie
            .remove(&sha256(cookie.as_bytes()));
    }

    /// Returns the user of a token.
    pub(crate) fn of_token(&self, token: &str, from: IpAddr) -> Option<Actor> {
        let users = self.users.load();
        let (name, user) = users.as_ref()?.of_token(token)?;
        Some(Actor {
            user: name.to_owned(),
            role: user.role,
            from: Some(from),
            csrf: None,
        })
    }
}

impl Session {
    /// True if `given` is the second secret, which the session's requests carry.
    pub(crate) fn is_csrf(&self, given: &str) -> bool {
        self.csrf.as_bytes().ct_eq(given.as_bytes()).into()
    }
}

impl Sessions {
    fn retain(&mut self, keep: impl Fn(&Session) -> bool) {
        self.by_cookie.retain(|_, session| keep(session));
    }

    fn make_room(&mut self) {
        if self.by_cookie.len() < MAX_SESSIONS {
            return;
        }
        let oldest = self
            .by_cookie
            .iter()
            .min_by_key(|(_, session)| session.used);
        if let Some(key) = oldest.map(|(key, _)| *key) {
            self.by_cookie.remove(&key);
        }
    }
}

/// Address or user whose failures are counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FailureKey {
    Address(IpAddr),
    User(String),
}

#[derive(Clone, Copy, Debug)]
struct Count {
    failures: u32,
    last: Instant,
}

/// Failures of late.
#[derive(Debug, Default)]
struct Failures {
    counts: HashMap<FailureKey, Count>,
    /// Networks from which each user has logged in before, and when: the failures of others do not keep that
    /// user out there.
    welcome: HashMap<(IpAddr, String), Instant>,
}

impl Failures {
    fn failure_keys(name: &str, from: IpAddr) -> [(FailureKey, u32); 2] {
        [
            (FailureKey::Address(network_of(from)), FREE_FAILURES),
            (FailureKey::User(name.to_owned()), FREE_FAILURES_OF_USER),
        ]
    }

    /// Returns how long somebody who logs in as `name` from that address must wait.
    fn wait_time(&self, name: &str, from: IpAddr, now: Instant) -> Option<Duration> {
        let is_welcome = self
            .welcome
            .contains_key(&(network_of(from), name.to_owned()));
        let waits = Self::failure_keys(name, from)
            .into_iter()
            .filter(|(whose, _)| !is_welcome || matches!(whose, FailureKey::Address(_)))
            .filter_map(|(whose, free)| {
                let count = self.counts.get(&whose)?;
                let beyond = count.failures.checked_sub(free)?;
                let wait = FIRST_WAIT
                    .saturating_mul(1 << beyond.min(10))
                    .min(LONGEST_WAIT);
                let passed = now.duration_since(count.last);
                wait.checked_sub(passed).filter(|left| !left.is_zero())
            });
        waits.max()
    }

    fn count(&mut self, name: &str, from: IpAddr, now: Instant) {
        if self.counts.len() >= MAX_COUNTED {
            self.counts
                .retain(|_, count| now.duration_since(count.last) < FORGET);
        }
        for (whose, _) in Self::failure_keys(name, from) {
            if self.counts.len() >= MAX_COUNTED && !self.counts.contains_key(&whose) {
                // Somebody fills the table: the one that has failed longest ago makes room.
                let oldest = self.counts.iter().min_by_key(|(_, count)| count.last);
                if let Some(whose) = oldest.map(|(whose, _)| whose.clone()) {
                    self.counts.remove(&whose);
                }
            }
            let count = self.counts.entry(whose).or_insert(Count {
                failures: 0,
                last: now,
            });
            if now.duration_since(count.last) >= FORGET {
                count.failures = 0;
            }
            count.failures = count.failures.saturating_add(1);
            count.last = now;
        }
    }

    /// Notes that a user has logged in: failures before that are forgotten.
    fn forget_failures(&mut self, name: &str, from: IpAddr, now: Instant) {
        for (whose, _) in Self::failure_keys(name, from) {
            self.counts.remove(&whose);
        }
        let whose = (network_of(from), name.to_owned());
        if self.welcome.len() >= MAX_WELCOME && !self.welcome.contains_key(&whose) {
            let oldest = self.welcome.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(whose, _)| whose.clone()) {
                self.welcome.remove(&oldest);
            }
        }
        self.welcome.insert(whose, now);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::users::tests::users;

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn access() -> Access {
        let users = ArcSwapOption::from_pointee(users());
        Access::new(&Admin::default(), Arc::new(users))
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test]
    async fn a_login_lasts_while_it_is_used_and_not_for_ever() {
        let (access, begun) = (access(), Instant::now());
        let login = access
            .check_login("anna", "secret", FROM, begun)
            .await
            .unwrap();
        assert_eq!(login.role, Role::Administer);
        let ask = |now: Duration| access.use_session(&login.cookie, begun + now);
        let (session, role) = ask(seconds(1)).unwrap();
        assert_eq!((session.user.as_str(), role), ("anna", Role::Administer));
        assert!(session.is_csrf(&login.csrf));
        assert!(!session.is_csrf("") && !session.is_csrf(&login.cookie));
        for hour in 0..12 {
            let now = seconds(1 + hour * 3590);
            assert!(ask(now).is_some(), "{hour}");
        }
        assert!(ask(seconds(12 * 3600)).is_none(), "used, but too old");

        let login = access
            .check_login("anna", "secret", FROM, begun)
            .await
            .unwrap();
        let looked_at = |now: Duration| access.look_at(&login.cookie, begun + now).is_some();
        assert!(looked_at(seconds(3599)) && !looked_at(seconds(3601)));
        assert!(
            access
                .use_session(&login.cookie, begun + seconds(3601))
                .is_none()
        );
        assert!(access.use_session("", begun).is_none());

        let login = access
            .check_login("anna", "secret", FROM, begun)
            .await
            .unwrap();
        access.end_session(&login.cookie);
        assert!(access.use_session(&login.cookie, begun).is_none());
    }

    #[tokio::test]
    async fn a_session_ends_with_the_line_of_its_user() {
        let (access, now) = (access(), Instant::now());
        let login = access
            .check_login("anna", "secret", FROM, now)
            .await
            .unwrap();
        access.users.store(Some(Arc::new(users())));
        assert!(access.use_session(&login.cookie, now).is_some());
        access.users.store(None);
        assert!(access.use_session(&login.cookie, now).is_none());
    }

    #[tokio::test]
    async fn who_fails_too_often_must_wait() {
        let (access, now) = (access(), Instant::now());
        let at = |after: u64| now + seconds(after);
        for _ in 0..FREE_FAILURES {
            let wrong = access.check_login("anna", "wrong", FROM, now).await;
            assert_eq!(wrong, Err(NoLogin::Wrong));
        }
        let wait = access.check_login("anna", "secret", FROM, now).await;
        assert_eq!(wait, Err(NoLogin::Wait(FIRST_WAIT)), "even if it is right");
        let elsewhere = "192.0.2.2".parse().unwrap();
        assert!(
            access
                .check_login("anna", "secret", elsewhere, now)
                .await
                .is_ok()
        );
        // Waiting is no failure.
        let wait = access.check_login("anna", "secret", FROM, at(9)).await;
        assert_eq!(wait, Err(NoLogin::Wait(seconds(1))));
        assert_eq!(
            access.check_login("bert", "x", FROM, at(10)).await,
            Err(NoLogin::Wrong)
        );
        let wait = access.check_login("anna", "secret", FROM, at(10)).await;
        assert_eq!(wait, Err(NoLogin::Wait(FIRST_WAIT * 2)));
        assert!(
            access
                .check_login("anna", "secret", FROM, at(30))
                .await
                .is_ok()
        );
        // All is forgotten.
        assert_eq!(
            access.check_login("anna", "x", FROM, at(31)).await,
            Err(NoLogin::Wrong)
        );
        assert!(
            access
                .check_login("anna", "secret", FROM, at(31))
                .await
                .is_ok()
        );
    }

    #[test]
    fn failures_are_counted_in_bounded_memory() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        for number in 0..3 * MAX_COUNTED as u32 {
            let from = std::net::Ipv4Addr::from_bits(number).into();
            failures.count("anna", from, now + Duration::from_millis(number.into()));
        }
        assert!(failures.counts.len() <= MAX_COUNTED);
        let later = now + Duration::from_millis(3 * MAX_COUNTED as u64);
        // Whoever comes from everywhere is slowed down by the user's name.
        assert_eq!(
            failures
                .wait_time("anna", FROM, later)
                .map(|wait| wait > seconds(800)),
            Some(true)
        );
        assert_eq!(failures.wait_time("bert", FROM, later), None);
    }

    #[tokio::test]
    async fn n7_what_is_longer_than_any_password_is_wrong_at_once_and_counts() {
        let (access, now) = (access(), Instant::now());
        // Nobody compares anything now, so that whoever waits for it would wait for ever.
        let _busy = access.checks.acquire_many(CHECKS as u32).await.unwrap();
        let _full = access.queue.acquire_many((CHECKS + MAX_WAITING) as u32);
        let (long, longer) = ("x".repeat(MAX_PASSWORD + 1), "x".repeat(60_000));
        for (name, password) in [("anna", &long), ("anna", &longer), (&*longer, &longer)] {
            let login = access.check_login(name, password, FROM, now).await;
            assert_eq!(login, Err(NoLogin::Wrong));
        }
        for _ in 3..FREE_FAILURES {
            let login = access.check_login("anna", &long, FROM, now).await;
            assert_eq!(login, Err(NoLogin::Wrong));
        }
        let login = access.check_login("anna", &long, FROM, now).await;
        assert_eq!(login, Err(NoLogin::Wait(FIRST_WAIT)));
        let longest = |whose: &FailureKey| match whose {
            FailureKey::User(name) => name.len(),
            FailureKey::Address(_) => 0,
        };
        let failures = access.failures.lock();
        assert!(
            failures
                .counts
                .keys()
                .all(|whose| longest(whose) <= MAX_USER)
        );
    }

    #[test]
    fn n17_a_user_is_not_kept_out_by_others_where_the_user_has_been_before() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        failures.forget_failures("anna", FROM, now);
        for number in 0..2 * FREE_FAILURES_OF_USER {
            let from = std::net::Ipv4Addr::from_bits(number).into();
            failures.count("anna", from, now);
        }
        let elsewhere = "192.0.2.2".parse().unwrap();
        assert_eq!(
            failures.wait_time("anna", elsewhere, now),
            Some(LONGEST_WAIT)
        );
        assert_eq!(failures.wait_time("anna", FROM, now), None);
        // Its own failures count there, too.
        for _ in 0..FREE_FAILURES {
            failures.count("anna", FROM, now);
        }
        assert_eq!(failures.wait_time("anna", FROM, now), Some(FIRST_WAIT));
        for number in 0..2 * MAX_WELCOME as u32 {
            let from = std::net::Ipv4Addr::from_bits(number).into();
            failures.forget_failures("bert", from, now + Duration::from_millis(number.into()));
        }
        assert_eq!(failures.welcome.len(), MAX_WELCOME);
        assert!(!failures.welcome.contains_key(&(FROM, "anna".into())));
    }

    #[test]
    fn sessions_are_bounded() {
        let (access, now) = (access(), Instant::now());
        let users = access.users.load_full().unwrap();
        let anna = users.get("anna").unwrap();
        let first = access.begin_session("anna", anna, now).unwrap();
        for number in 0..MAX_SESSIONS {
            let at = now + Duration::from_millis(1 + number as u64);
            access.begin_session("anna", anna, at).unwrap();
        }
        assert_eq!(access.sessions.lock().by_cookie.len(), MAX_SESSIONS);
        assert!(access.use_session(&first.cookie, now).is_none());
    }
}
